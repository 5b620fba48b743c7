"""Folding gives kernels few dimensions with the same entries, and results the expected shape."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autofuse.kernels.folded_operands import (
    broadcasts_to,
    empty_in_memory_order,
    fold,
    fold_checked,
    without_broadcast,
    without_repeats,
)

LAYOUTS = {
    "as it is": torch.randn(2, 3, 5, 4),
    "heads last": torch.randn(2, 5, 3, 4).transpose(1, 2),
    "a part of a projection": torch.randn(2, 5, 36)[..., 12:24].view(2, 5, 3, 4).transpose(1, 2),
    "one head": torch.randn(2, 1, 5, 4),
    "no leading dimension": torch.randn(4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("factors", [(5, 4), (2, 1, 5, 4), (1, 1, 4), (4,)])
def test_views_and_operands_give_the_same_result(layout: str, factors: tuple[int, ...]) -> None:
    x, factor = LAYOUTS[layout], torch.randn(factors)
    if not broadcasts_to(factor, x):
        return
    made = fold_checked(x, factor)
    found = made.result(made.view(0, x) * made.view(1, factor))
    assert torch.equal(found, x * factor)
    assert found.stride() == empty_in_memory_order(x, x.dtype).stride()


def test_contiguous_dimensions_become_one() -> None:
    made = fold_checked(torch.randn(2, 3, 5, 4), torch.randn(5, 4))
    assert made.sizes == (1, 6, 5)
    assert made.strides == ((0, 20, 4), (0, 0, 4))


def test_more_than_three_runs_do_not_fold() -> None:
    assert fold(torch.randn(2, 3, 4, 5, 6), torch.randn(2, 1, 4, 1, 6)) is None


def test_expanded_dimensions_are_removed_from_masks_and_copied_in_operands() -> None:
    x = torch.randn(2, 1, 5, 4).expand(2, 3, 5, 4)
    assert without_repeats(x).shape == (2, 1, 5, 4)
    assert without_broadcast(x).is_contiguous()
    assert torch.equal(without_broadcast(x), x)


def test_operands_larger_than_the_first_do_not_broadcast_to_it() -> None:
    def both(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
        return tuple(torch.empty(s) for s in shapes)

    assert broadcasts_to(*both((1, 5, 4), (2, 5, 4)))
    assert not broadcasts_to(*both((3, 5, 4), (1, 5, 4)))
    assert not broadcasts_to(*both((1, 2, 5, 4), (2, 5, 4)))
