"""What a mask buffer is proved to hold."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from autofuse.fx.install.mask_contents import buffer_form

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
