"""Thresholds on GPUs follow from the added Python time, the saved memory traffic, and what steps wait for."""

from __future__ import annotations

from typing import get_args

import pytest

from autofuse.kernels.decisions import Kind
from autofuse.kernels.gpu_thresholds import GpuThreshold
from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.policy import KernelSettings, from_environment, launch_bound_in
from autofuse.results.profile_parts import Regime


@pytest.mark.parametrize("saved", [1, 4, 10])
@pytest.mark.parametrize("extra", [5.0, 24.0, 90.0])
def test_steps_that_wait_for_launches_need_larger_tensors_than_steps_that_wait_for_the_gpu(
    extra: float, saved: int
) -> None:
    given = GpuThreshold(extra, saved)
    assert given.least(False) == 0 < given.least(None) < given.least(True)
    seconds_saved = given.least(True) * 2 * saved / 3.0e12
    assert extra * 1e-6 < seconds_saved <= 2.1 * extra * 1e-6


def test_a_call_without_added_python_time_is_used_for_any_size() -> None:
    assert [GpuThreshold(0, 3).least(bound) for bound in (True, False, None)] == [0, 0, 0]


def test_an_operations_own_threshold_holds_on_gpus_only() -> None:
    for name in ("rms_norm", "gated_product", "gated_activation", "rotary", "dropout_add_norm"):
        assert OPERATIONS[name].least_on_gpu(False) == 0 and OPERATIONS[name].least > 0
    assert OPERATIONS["cross_entropy"].least_on_gpu(False) == OPERATIONS["cross_entropy"].least


@pytest.mark.parametrize(("text", "expected"), [("", None), ("1", True), ("0", False), ("no", False), ("yes", True)])
def test_the_environment_sets_what_steps_wait_for(text: str, expected: bool | None) -> None:
    assert from_environment({"AUTOFUSE_LAUNCH_BOUND": text}).launch_bound is expected


def test_the_regime_of_a_profile_sets_what_steps_wait_for() -> None:
    said = {regime: launch_bound_in(regime) for regime in get_args(Regime)}
    assert said == {"compute": False, "memory": False, "overhead": True, "inconclusive": None, "unknown": None}


def test_decisions_are_separate_for_what_steps_wait_for() -> None:
    of = Kind("rms_norm", "cuda", "bfloat16", (21, 768), True, False)
    keys = {of.key(KernelSettings(launch_bound=bound)) for bound in (None, True, False)}
    assert len(keys) == 3
    on_cpu = of._replace(device="cpu")
    assert len({on_cpu.key(KernelSettings(launch_bound=bound)) for bound in (None, True, False)}) == 1
