"""Look-alikes: what they resemble, and whether a wrong answer is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.peers import judging
from benchmarks.peers.lookalikes import LOOKALIKES
from benchmarks.peers.ways import Way

ATTENTION = [name for name, each in LOOKALIKES.items() if each.inputs == 3 and each.change is None]
CHANGING = [name for name, each in LOOKALIKES.items() if each.change is not None]


def _fuses_blindly(model: nn.Module, inputs: Any) -> Callable[..., Any]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v)


def _remembers(model: nn.Module, inputs: Any) -> Callable[..., Any]:
    return torch.jit.trace(model, inputs, check_trace=False)  # constants and hooks as they were


@pytest.mark.parametrize("name", ATTENTION)
def test_the_fused_kernel_in_its_place_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "WAYS", {"blind": Way("torch", _fuses_blindly)})
    assert judging.judge("blind", name) == judging.WRONG


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.filterwarnings("ignore")
def test_a_way_that_remembers_the_first_call_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "WAYS", {"frozen": Way("torch", _remembers)})
    assert judging.judge("frozen", name) == judging.WRONG


@pytest.mark.parametrize("name", LOOKALIKES)
def test_the_original_is_right(name: str) -> None:
    assert judging.judge("eager", name) == judging.RIGHT
