"""Targets that are no class are found, unless they are ignored."""

from __future__ import annotations

import torch

from autofuse.kernels.class_targets import out_of_range


def test_targets_that_are_no_class_are_found_unless_ignored() -> None:
    target = torch.tensor([0, 4, 7, -100, -1])
    found = out_of_range(target, 5, -100)
    assert found is not None and found.tolist() == [7, -1]
    assert out_of_range(target[:2], 5, -100) is None
    assert out_of_range(torch.tensor([0, -100]), 5, -100) is None
    assert out_of_range(target[:0], 5, -100) is None
