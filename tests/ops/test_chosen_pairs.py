"""The functions of chosen pairs of a token and an expert, compared with dense computations."""

from __future__ import annotations

import pytest
import torch

from autofuse.ops.chosen_pairs import chosen_rows, entries_of_rows, rows_of_tokens, sparse_product, sum_over_experts

EXPERTS, TOKENS, WIDTH = 3, (2, 4), 5


@pytest.mark.parametrize("equation", ["tec,td->ecd", "tec,ecd->td", "btec,btd->ebcd", "etc,td->ced"])
def test_a_sparse_product_equals_einsum(equation: str) -> None:
    torch.manual_seed(0)
    sizes = {"t": 4, "e": 3, "c": 2, "d": 5, "b": 2}
    of_sparse, of_dense = equation.split("->")[0].split(",")
    mask = torch.rand([sizes[c] for c in of_sparse]) < 0.3
    sparse = (torch.randn(mask.shape, dtype=torch.float64) * mask).requires_grad_()
    dense = torch.randn([sizes[c] for c in of_dense], dtype=torch.float64, requires_grad=True)
    made, expected = sparse_product(sparse, mask, dense, equation), torch.einsum(equation, sparse, dense)
    torch.testing.assert_close(made, expected)
    weights = torch.randn_like(expected)
    for a, b in zip(*(torch.autograd.grad(y, (sparse, dense), weights) for y in (made, expected)), strict=True):
        torch.testing.assert_close(a, b * mask if b.shape == mask.shape else b)


def test_the_rows_of_chosen_pairs_add_up_to_the_dense_sum() -> None:
    torch.manual_seed(0)
    index = torch.tensor([[[0, 2], [0, 1], [2, 1], [0, 2]], [[2, 0], [2, 0], [0, 2], [2, 0]]])
    weights = torch.zeros(*TOKENS, EXPERTS).scatter(-1, index, torch.rand(*TOKENS, 2))
    x = torch.randn(*TOKENS, WIDTH)
    expert, token, ends = chosen_rows(index, EXPERTS, 2)
    entries = entries_of_rows(weights, False, EXPERTS, token, expert)
    assert torch.equal(entries, entries_of_rows(weights.movedim(-1, 0), True, EXPERTS, token, expert))
    rows = rows_of_tokens(x, 2, token) * (entries * (expert + 1)).unsqueeze(-1)
    expected = torch.einsum("bte,btd,e->btd", weights, x, torch.arange(1.0, EXPERTS + 1))
    torch.testing.assert_close(sum_over_experts(rows, token, ends, weights, (0, 1)), expected)


def test_a_token_that_chooses_an_expert_twice_has_one_row() -> None:
    expert, token, ends = chosen_rows(torch.tensor([[1, 1], [0, 1]]), EXPERTS, 2)
    assert (expert.tolist(), token.tolist(), ends.tolist()) == ([0, 1, 1], [1, 0, 1], [1, 3, 3])
