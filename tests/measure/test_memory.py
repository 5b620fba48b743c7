"""Peak memory of actions whose allocations are known to the byte."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autofuse.measure.memory import allocation_events_peak, mem_tracker_peak, peak_of

CPU = torch.device("cpu")
MIB = 2**20


def block() -> Tensor:
    return torch.zeros(MIB, dtype=torch.uint8)


def two_at_once() -> None:
    kept = block()
    block().add_(kept)


def one_after_the_other() -> None:
    block()
    block()


@pytest.mark.parametrize("peak", [allocation_events_peak, mem_tracker_peak])
def test_what_lives_together_adds_up_and_what_was_freed_does_not(peak: object) -> None:
    assert callable(peak)
    assert peak(two_at_once) == 2 * MIB
    assert peak(one_after_the_other) == MIB


def test_what_stood_before_does_not_count() -> None:
    kept = block()
    assert peak_of(lambda: kept.add_(block()), CPU).bytes == MIB


def test_an_action_without_allocations_has_no_peak() -> None:
    assert peak_of(int, CPU).bytes == 0


def test_both_sources_agree_on_a_step_of_plain_operators() -> None:
    model, x = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), torch.randn(32, 64)

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    step()
    assert allocation_events_peak(step) == mem_tracker_peak(step)


def test_the_source_is_named() -> None:
    assert peak_of(block, CPU).source == "torch.profiler"


def test_a_device_without_a_source_gives_none_and_says_so() -> None:
    peak = peak_of(block, torch.device("meta"))
    assert peak.bytes is None
    assert "meta" in peak.source


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_peak_is_the_allocators() -> None:
    device = torch.device("cuda")
    kept = torch.zeros(MIB, dtype=torch.uint8, device=device)
    assert peak_of(lambda: kept + 1, device).bytes == MIB
