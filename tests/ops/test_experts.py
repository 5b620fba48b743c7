"""autofuse.ops' linear layers of experts against their formula, and the functions that sort their rows."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from autofuse import ops
from autofuse.ops import reference
from autofuse.ops.experts import add_expert_rows, chosen_experts, each_expert, expert_rows

E, D, F = 4, 6, 5
ENDS = {"none without": [2, 5, 6, 9], "two without": [0, 4, 4, 9], "one has all": [0, 9, 9, 9], "no rows": [0, 0, 0, 0]}


def operands_of_experts(ends: list[int], biased: bool, transposed: bool) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(0)
    shapes = [(ends[-1], D), (E, D, F) if transposed else (E, F, D), *([(E, F)] if biased else [])]
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes], torch.tensor(ends)


@pytest.mark.parametrize("ends", ENDS.values(), ids=list(ENDS))
def test_products_and_gradients_agree_with_the_formula(ends: list[int]) -> None:
    for biased, transposed in itertools.product((False, True), repeat=2):
        operands, last = operands_of_experts(ends, biased, transposed)
        padded = (*operands, None)[:3]
        expected = reference.grouped_linear(*padded, last, transposed)  # type: ignore[arg-type]
        weights = torch.randn_like(expected)
        for function in (ops.grouped_linear, ops.expert_linear)[: 2 if ends[-1] else 1]:
            made = function(*padded, last, transposed)  # type: ignore[arg-type]
            torch.testing.assert_close(made, expected)
            gradients = torch.autograd.grad(made, operands, weights)
            for a, b in zip(
                gradients, torch.autograd.grad(expected, operands, weights, retain_graph=True), strict=True
            ):
                torch.testing.assert_close(a, b)


def test_a_second_derivative_is_right() -> None:
    for biased, transposed in itertools.product((False, True), repeat=2):
        operands, last = operands_of_experts(ENDS["two without"], biased, transposed)
        run = lambda x, w, b=None: ops.grouped_linear(x, w, b, last, transposed)  # noqa: B023
        assert torch.autograd.gradgradcheck(run, operands)


def test_rows_without_an_expert_are_an_error() -> None:
    operands, _ = operands_of_experts(ENDS["one has all"], False, False)
    with pytest.raises(ValueError, match="last expert end at 8"):
        ops.grouped_linear(operands[0], operands[1], None, torch.tensor([1, 2, 3, 8]))


def test_rows_are_sorted_by_expert_in_the_order_of_torch_where() -> None:
    torch.manual_seed(0)
    indices = torch.randint(-1, E + 1, (7, 3))  # those beyond belong to no expert
    expert, token, place, ends = expert_rows(chosen_experts(indices, E))
    start = 0
    for e in range(E):
        wanted = torch.where(indices == e)
        end = int(ends[e])
        assert torch.equal(token[start:end], wanted[0])
        assert torch.equal(place[start:end], wanted[1])
        assert (expert[start:end] == e).all()
        start = end
    assert start == len(expert)


def test_experts_without_rows_are_called_only_on_request() -> None:
    called: list[int] = []
    experts = [nn.Linear(D, D) for _ in range(E)]
    for e, expert in enumerate(experts):
        expert.register_forward_hook(lambda *_, e=e: called.append(e))
    x, ends = torch.randn(9, D), torch.tensor(ENDS["two without"])
    each_expert(experts, x, ends, empty=False)
    assert called == [1, 3]
    each_expert(experts, x, ends, empty=True)
    assert called[2:] == [0, 1, 2, 3]
    assert all(p.grad is None for p in experts[0].parameters())


def test_rows_are_added_in_the_order_of_experts() -> None:
    rows, places, ends = torch.randn(9, D), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2]), torch.tensor([3, 3, 6, 9])
    expected = torch.zeros(3, D)
    for start in (0, 3, 6):
        expected.index_add_(0, places[start : start + 3], rows[start : start + 3])
    assert torch.equal(add_expert_rows(torch.zeros(3, D), (places,), rows, ends), expected)
    two = add_expert_rows(torch.zeros(1, 3, D), (torch.zeros_like(places), places), rows, ends)
    assert torch.equal(two[0], expected)
