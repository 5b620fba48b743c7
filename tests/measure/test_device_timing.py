"""Tests of timing by a device's own clock: rounds, the host's time, and writes that keep the device busy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from autofuse.kernels.candidate_timing import race_steps_on_device
from autofuse.kernels.ranking import rank
from autofuse.measure.device_timing import CudaClock, count_writes, covered_microseconds, race_on_device
from autofuse.results.tuning import Trial


class Stopwatch:
    """A fake clock: each call takes a fixed number of seconds."""

    def __init__(self, device: dict[Callable[[], object], float]) -> None:
        self.device, self.asked = device, list[float]()

    def device_seconds(self, action: Callable[[], object], host: float) -> float:
        self.asked.append(host)
        return self.device[action]

    def host_seconds(self, action: Callable[[], object]) -> float:
        return 10 * self.device[action]


def quick() -> None: ...
def slow() -> None: ...


def test_every_action_runs_in_every_round_and_the_first_twice() -> None:
    clock = Stopwatch({quick: 1e-3, slow: 2e-3})
    times, host = race_on_device({"quick": quick, "slow": slow}, seconds=0.0, seed=0, clock=clock)
    assert times.samples == {"quick": (1e-3,) * 8, "slow": (2e-3,) * 8} and times.control == (1e-3,) * 8
    assert host == {"quick": 1e-2, "slow": 2e-2}
    assert sorted(clock.asked) == [1e-2] * 16 + [2e-2] * 8


def test_the_fastest_action_on_the_device_wins_whatever_its_launch_takes() -> None:
    clock = Stopwatch({quick: 1e-3, slow: 2e-3})
    result = race_steps_on_device({"slow": slow, "quick": quick}, [Trial("slow"), Trial("quick")], 0.0, clock)
    assert rank(result, "speed")[0] == ("quick", "slow")
    assert [t.host_seconds for t in result.trials] == [2e-2, 1e-2]


@pytest.mark.parametrize(("host", "expected"), [(0.0, 1), (20e-6, 1), (200e-6, 9), (1.0, 200)])
def test_the_device_is_busy_for_longer_than_the_host_takes_to_launch(host: float, expected: int) -> None:
    assert count_writes(host) == expected


def test_no_action_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to time"):
        race_on_device({}, seconds=0.0, seed=0, clock=Stopwatch({}))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_copy_takes_the_time_that_its_bytes_take() -> None:
    x = torch.empty(2**28, dtype=torch.int8, device="cuda")
    result = CudaClock(x.device).device_seconds(lambda: x.clone(), 20e-6)
    assert 2 * x.numel() / 20e12 < result < 2 * x.numel() / 50e9


@pytest.mark.parametrize("spans, length", [
    ([], 0.0), ([(1.0, 3.0)], 2.0), ([(5.0, 6.0), (1.0, 3.0)], 3.0), ([(1.0, 4.0), (2.0, 3.0), (3.5, 6.0)], 5.0),
    ([(1.0, 2.0), (2.0, 3.0)], 2.0), ([(1.0, 2.0), (1.0, 2.0)], 1.0),
])  # fmt: skip
def test_overlapping_kernels_count_once(spans: list[tuple[float, float]], length: float) -> None:
    assert covered_microseconds(spans) == length
