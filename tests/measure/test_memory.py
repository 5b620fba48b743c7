"""Tests of peak memory, with actions that allocate a known number of bytes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autofuse.measure.memory import allocation_events_peak, measure_peak_memory, mem_tracker_peak

CPU = torch.device("cpu")
MIB = 2**20


def block() -> Tensor:
    return torch.zeros(MIB, dtype=torch.uint8)


def two_at_once() -> None:
    existing = block()
    block().add_(existing)


def one_after_the_other() -> None:
    block()
    block()


@pytest.mark.parametrize("peak", [allocation_events_peak, mem_tracker_peak])
def test_the_peak_adds_tensors_that_exist_at_the_same_time(peak: object) -> None:
    assert callable(peak)
    assert peak(two_at_once) == 2 * MIB
    assert peak(one_after_the_other) == MIB


def test_memory_from_before_the_run_does_not_count() -> None:
    existing = block()
    assert measure_peak_memory(lambda: existing.add_(block()), CPU).bytes == MIB


def test_an_action_without_allocations_has_no_peak() -> None:
    assert measure_peak_memory(int, CPU).bytes == 0


def test_both_sources_agree_on_a_step_of_plain_operators() -> None:
    model, x = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), torch.randn(32, 64)

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    step()
    assert allocation_events_peak(step) == mem_tracker_peak(step)


def test_the_source_is_named() -> None:
    assert measure_peak_memory(block, CPU).source == "torch.profiler"


def test_an_unsupported_device_has_no_peak_and_a_message() -> None:
    peak = measure_peak_memory(block, torch.device("meta"))
    assert peak.bytes is None
    assert "meta" in peak.source


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_allocator_reports_the_peak() -> None:
    device = torch.device("cuda")
    existing = torch.zeros(MIB, dtype=torch.uint8, device=device)
    assert measure_peak_memory(lambda: existing + 1, device).bytes == MIB
