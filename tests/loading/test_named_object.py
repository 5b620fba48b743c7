"""A full name is resolved to the object with this name."""

from __future__ import annotations

import pytest
import torch

from autofuse.loading.named_object import resolve_name


def test_full_names_are_resolved() -> None:
    assert resolve_name("torch.nn.functional.softplus") is torch.nn.functional.softplus
    assert resolve_name("torch.special.xlogy") is torch.special.xlogy
    with pytest.raises(AttributeError):
        resolve_name("torch.nn.functional.there_is_none")
