"""Optimizers are restored to the state before their first step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizer_module

from autofuse.profiling.live.optimizers import preserved_optimizers

KINDS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
}


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_a_used_optimizer_continues_as_if_no_profile_had_run(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = KINDS[kind](model.parameters())
    _step(model, optimizer)
    before = copy.deepcopy(optimizer.state_dict())
    held = [value for entry in optimizer.state.values() for value in entry.values()]
    with preserved_optimizers():
        optimizer.param_groups[0]["lr"] = 0.1
        _step(model, optimizer)
        optimizer.param_groups[0]["lr"] = 7.0
        _step(model, optimizer)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for key, entry in before["state"].items():
        for name, value in entry.items():
            assert torch.equal(torch.as_tensor(after["state"][key][name]), torch.as_tensor(value))
    now = [value for entry in optimizer.state.values() for value in entry.values()]
    assert all(a is b for a, b in zip(held, now, strict=True) if isinstance(a, torch.Tensor))


def test_an_optimizer_that_had_no_state_has_none_again() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with preserved_optimizers():
        _step(model, optimizer)
        assert optimizer.state
    assert not optimizer.state
    _step(model, optimizer)
    assert next(iter(optimizer.state.values()))["step"] == 1


def test_no_hook_stays_behind_after_an_error() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.raises(KeyError), preserved_optimizers():
        _step(model, optimizer)
        raise KeyError
    optimizer.param_groups[0]["lr"] = 0.25
    _step(model, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert not optimizer_module._global_optimizer_pre_hooks
