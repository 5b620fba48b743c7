"""What a mask buffer is proved to hold."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, fx, nn

from autofuse.fx.install.mask_contents import buffer_form, buffer_number, constant, holds_form, holds_number

ONES = torch.ones(6, 6)


@pytest.mark.parametrize(
    ("mask", "form"),
    [
        (ONES.tril(), "lower"),
        (ONES.bool().tril().view(1, 1, 6, 6), "lower"),
        (ONES.triu(1), "upper"),
        (ONES.bool().triu(1), "upper"),
        (torch.full((6, 6), float("-inf")).triu(1), "bias"),
        (torch.full((6, 6), -1e9).triu(1), "bias"),
        (ONES.triu(), None),
        (ONES.tril(1), None),
        (ONES.tril() * 2, None),
        (ONES.triu(1) * -0.5, None),
        (ONES[:4].tril(), None),
        (ONES.tril().expand(2, 6, 6), None),
        (torch.ones(1, 1), None),
    ],
)
def test_a_form_is_proved_exactly(mask: Tensor, form: str | None) -> None:
    assert buffer_form(mask) == form


def test_a_proof_is_made_anew_where_the_memory_was_written() -> None:
    mask = ONES.tril()
    assert buffer_form(mask) == buffer_form(copy.deepcopy(mask)) == "lower"
    mask[0, 5] = 1
    assert buffer_form(mask) is None


@pytest.mark.parametrize("held", [None, torch.ones(6), ONES.tril().to("meta"), nn.Parameter(ONES.tril())])
def test_of_what_is_no_square_buffer_with_numbers_nothing_is_proved(held: Tensor | None) -> None:
    assert buffer_form(held) is None
    assert held is None or held.is_meta or not holds_form(held, "lower")


def test_the_smallest_square_and_one_of_more_dimensions_are_read() -> None:
    assert buffer_form(torch.ones(2, 2).tril()) == "lower"
    assert buffer_form(torch.ones(3, 4).tril()) is None


@pytest.mark.parametrize(("fill", "form"), [(-1e3, "bias"), (-999.0, None), (1e4, None), (-1000, None)])
def test_only_a_fill_that_leaves_no_weight_is_one(fill: float, form: str | None) -> None:
    assert buffer_form(torch.full((4, 4), fill).triu(1)) == form


def test_a_guard_tells_its_form_from_others_and_from_what_was_written_since() -> None:
    mask = ONES.triu(1)
    assert holds_form(mask, "upper") and not holds_form(mask, "lower") and not holds_form(mask, "bias")
    mask.mul_(-1e9)
    assert holds_form(mask, "bias") and not holds_form(mask, "upper")
    mask.data = ONES.tril()
    assert holds_form(mask, "lower") and not holds_form(mask, "bias")
    mask.add_(1)
    assert not any(holds_form(mask, form) for form in ("lower", "upper", "bias"))


@pytest.mark.parametrize(
    ("held", "number"),
    [
        (torch.tensor(-1e4), -1e4),
        (torch.tensor(-1e3), -1e3),
        (torch.tensor(float("-inf")), float("-inf")),
        (torch.tensor(-999.0), None),
        (torch.tensor(-10000), None),
        (torch.tensor([-1e4]), None),
        (torch.tensor(-1e4, device="meta"), None),
        (nn.Parameter(torch.tensor(-1e4)), None),
        (None, None),
    ],
)
def test_a_fill_in_a_buffer_of_one_element_is_read(held: Tensor | None, number: float | None) -> None:
    assert buffer_number(held) == number


def test_a_guard_asks_the_number_anew_where_it_was_written() -> None:
    fill = torch.tensor(-1e4)
    assert holds_number(fill, -1e4) and not holds_number(fill, -1e9)
    fill.mul_(10)
    assert not holds_number(fill, -1e4) and holds_number(fill, -1e5)
    fill.data = torch.tensor(-2e4)
    assert not holds_number(fill, -1e5) and holds_number(fill, -2e4)
    fill.fill_(0.0)
    assert not holds_number(fill, -2e4) and not holds_number(None, -1e4)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", ONES.tril())
        self.child = nn.Module()
        self.child.register_buffer("table", ONES * 2)
        self.weight = nn.Parameter(ONES)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        of_buffers = (self.mask[:3, :3] + self.child.table[:3, :3]).neg()
        return of_buffers, self.mask * self.weight, self.mask * x, torch.rand_like(self.mask)


class Buffers(fx.Tracer):
    proxy_buffer_attributes = True


def returned(module: nn.Module) -> list[fx.Node]:
    (output,) = (n for n in Buffers().trace(module).nodes if n.op == "output")
    nodes: list[fx.Node] = [*output.args[0]]  # type: ignore[misc]
    return nodes


def test_what_is_computed_from_buffers_alone_is_constant_and_nothing_else_is() -> None:
    module = Masked()
    found = [constant(module, node) for node in returned(module)]
    assert found[0] is not None and torch.equal(found[0], -(ONES.tril() + 2)[:3, :3])
    assert found[1:] == [None] * 3


def test_what_a_node_writes_into_is_no_constant() -> None:
    module = Masked()
    node = returned(module)[0]
    node.meta["writes"] = True
    assert constant(module, node) is None


def test_a_size_is_what_it_was_in_the_example_and_no_tensor() -> None:
    graph = fx.Graph()
    size = graph.call_method("size", (graph.placeholder("x"), 0))
    size.meta["v"] = 4
    ones = graph.call_function(torch.ones, (size,))
    assert constant(nn.Module(), size) is None
    found = constant(nn.Module(), ones)
    assert found is not None and found.shape == (4,)
