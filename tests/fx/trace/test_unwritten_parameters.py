"""A run that shares the user's parameters restores them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autofuse.fx.trace.unwritten_parameters import UnwrittenParameters, restore_parameters


def _by_data(p: nn.Parameter) -> object:
    return p.data.clamp_(0.0, 0.1)


def _by_view(p: nn.Parameter) -> object:
    return p.view(-1)[2:].mul_(3)


def _by_item(p: nn.Parameter) -> None:
    p.data[0] = 5.0


def _by_out(p: nn.Parameter) -> object:
    return torch.add(p, 1.0, out=p.detach())


def _by_numpy(p: nn.Parameter) -> None:
    p.detach().numpy()[0] = 4.0


def _by_new_data(p: nn.Parameter) -> None:
    p.data = torch.zeros(7, dtype=p.dtype)


def _by_gradient(p: nn.Parameter) -> object:
    return p.requires_grad_(False)


@pytest.mark.parametrize("write", [_by_data, _by_view, _by_item, _by_out, _by_numpy, _by_new_data, _by_gradient])
def test_a_write_to_a_parameter_is_restored(write: Callable[[nn.Parameter], object]) -> None:
    parameter = nn.Parameter(torch.arange(4.0))
    before, memory = parameter.detach().clone(), parameter.data_ptr()
    run = UnwrittenParameters()
    assert run.share(parameter) is parameter
    with torch.no_grad(), restore_parameters(run):
        write(parameter)
        after = parameter.detach().clone(), parameter.requires_grad
    assert not (torch.equal(after[0], before) and after[1])
    assert torch.equal(parameter, before)
    assert parameter.requires_grad and parameter.data_ptr() == memory


def test_other_tensors_are_copied() -> None:
    x: Tensor = torch.ones(2)
    assert UnwrittenParameters().share(x) is not x
