"""Smaller calls cut dimensions consistently, and cut nothing that is not understood."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from autofuse.verify.runs import ModuleCall
from autofuse.verify.slices import smaller_calls


def _smallest(*args: Any, **kwargs: Any) -> list[tuple[int, ...]] | None:
    found = list(smaller_calls(ModuleCall(args, kwargs)))
    if not found:
        return None
    values = (*found[0][1].args, *found[0][1].kwargs.values())
    return [tuple(v.shape) for v in values if isinstance(v, Tensor)]


@pytest.mark.parametrize(("shapes", "expected"), [
    ([(8, 512, 64)], [(2, 128, 64)]),
    ([(8, 512, 512)], [(2, 128, 512)]),
    ([(8, 512, 64), (8, 1, 512, 512)], [(2, 128, 64), (2, 1, 128, 128)]),
    ([(8, 512, 64), (1, 1, 512, 512), (512, 32)], [(2, 128, 64), (1, 1, 128, 128), (128, 32)]),
    ([(8, 100, 64)], [(2, 100, 64)]),
    ([(8, 64)], [(2, 64)]),
    ([(8, 3, 32, 32)], [(2, 3, 32, 32)]),
])  # fmt: skip
def test_rows_and_length_are_cut(shapes: list[tuple[int, ...]], expected: list[tuple[int, ...]]) -> None:
    assert _smallest(*(torch.randn(s) for s in shapes)) == expected


def test_indices_have_a_length() -> None:
    ids = torch.zeros(4, 300, dtype=torch.long)
    assert _smallest(ids, attention_mask=torch.ones_like(ids)) == [(2, 128), (2, 128)]


@pytest.mark.parametrize("args", [(torch.randn(2, 100, 8),), (torch.randn(5),), (3,), (object(), torch.randn(9, 9, 9))])
def test_small_or_unknown_arguments_have_no_smaller_call(args: tuple[Any, ...]) -> None:
    assert _smallest(*args) is None


def test_a_mask_that_would_keep_nothing_is_not_cut_in_length() -> None:
    mask = torch.zeros(8, 512, dtype=torch.long)
    mask[:, 400:] = 1
    assert (
        _smallest(torch.randn(8, 512, 4), mask=mask) == [(2, 512, 4), (2, 512)]
        or _smallest(torch.randn(8, 512, 4), mask=mask) is None
    )
