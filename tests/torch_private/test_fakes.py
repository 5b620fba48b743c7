"""A fake tensor leads to the tensor from which it was made, and to no other."""

from __future__ import annotations

import torch

from autofuse.torch_private import FakeTensorMode
from autofuse.torch_private.fakes import find_real_tensor


def test_a_fake_leads_back_to_its_tensor() -> None:
    mode, tensors = FakeTensorMode(), [torch.ones(2, 2), torch.ones(2, 2), torch.zeros(3)]
    fakes = [mode.from_tensor(t) for t in tensors]
    assert all(find_real_tensor(f) is t for f, t in zip(fakes, tensors, strict=True))


def test_a_fake_without_a_real_tensor_leads_to_none() -> None:
    with FakeTensorMode() as mode:
        made, derived = torch.ones(2), mode.from_tensor(torch.ones(2)) + 1
    assert find_real_tensor(made) is None and find_real_tensor(derived) is None
    assert find_real_tensor(torch.ones(2)) is None and find_real_tensor(None) is None
