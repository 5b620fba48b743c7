"""A qualified name stands for the object that it imports."""

from __future__ import annotations

import pytest
import torch

from autofuse.loading.named_object import resolved


def test_names_are_resolved_in_full() -> None:
    assert resolved("torch.nn.functional.softplus") is torch.nn.functional.softplus
    assert resolved("torch.special.xlogy") is torch.special.xlogy
    with pytest.raises(AttributeError):
        resolved("torch.nn.functional.there_is_none")
