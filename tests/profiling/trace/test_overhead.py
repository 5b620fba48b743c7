"""The cost of recording is removed: a layer of 100 small operators and one of a single product, by hand."""

from __future__ import annotations

import pytest

from autofuse.profiling.trace.layers import LayerTimes
from autofuse.profiling.trace.overhead import RecordingCost, remove_recording_cost, scale_to_timed_phases
from autofuse.results.profile import OPTIMIZER, OUTSIDE, Share, Work

# 100 operators of 1 us, recorded as 2 us each; one product of 100 us; 10 us of the step have no owner.
TIMES = LayerTimes(
    own={("small", "forward"): Work(200e-6, operators=100), ("big", "forward"): Work(101e-6, operators=1)},
    calls={"small": 1, "big": 1},
    kinds={},
    events={("small", "forward"): 100, ("big", "forward"): 1},
    made_calls={},
    step_seconds=311e-6,
    steps=1,
)


def seconds(times: LayerTimes) -> dict[str, float]:
    return {name: work.seconds for (name, _), work in times.own.items()}


def test_layers_lose_the_cost_of_recording_and_the_total_is_the_clean_step() -> None:
    times = remove_recording_cost(TIMES, 210e-6, RecordingCost(event=1e-6, call=0.0))
    assert seconds(times) == pytest.approx({"small": 100e-6, "big": 100e-6})
    assert times.step_seconds == 210e-6
    assert times.attribution.overhead == pytest.approx(311 / 210)


def test_a_machine_that_was_slower_meanwhile_scales_all() -> None:
    assert seconds(remove_recording_cost(TIMES, 105e-6, RecordingCost(1e-6, 0.0))) == pytest.approx(
        {"small": 50e-6, "big": 50e-6}
    )


def test_no_more_is_taken_than_the_step_was_stretched_by() -> None:
    times = remove_recording_cost(TIMES, 300e-6, RecordingCost(1e-6, 0.0))
    stretch, events = 11e-6, 101
    assert seconds(times) == pytest.approx({"small": 200e-6 - 100 * stretch / events, "big": 101e-6 - stretch / events})
    assert seconds(remove_recording_cost(TIMES, 311e-6, RecordingCost(1e-6, 0.0))) == pytest.approx(seconds(TIMES))


def test_no_time_is_negative() -> None:
    cheap = LayerTimes(
        own={("views", "forward"): Work(1e-6), ("big", "forward"): Work(99e-6)}, calls={}, kinds={},
        events={("views", "forward"): 40, ("big", "forward"): 1}, made_calls={}, step_seconds=100e-6, steps=1,
    )  # fmt: skip
    times = remove_recording_cost(cheap, 59e-6, RecordingCost(1e-6, 0.0))
    assert seconds(times)["views"] == 0.0
    assert seconds(times)["big"] == pytest.approx(59e-6)


def test_calls_are_charged_to_their_callers() -> None:
    made = LayerTimes(
        own={("", "forward"): Work(30e-6), ("a", "forward"): Work(10e-6)}, calls={}, kinds={},
        events={}, made_calls={("", "forward"): 10, (OUTSIDE, "forward"): 1}, step_seconds=42e-6, steps=1,
    )  # fmt: skip
    assert seconds(remove_recording_cost(made, 20e-6, RecordingCost(0.0, 2e-6))) == pytest.approx(
        {"": 10e-6 * 20 / 22, "a": 10e-6 * 20 / 22}
    )


def test_kernels_of_a_gpu_are_not_stretched() -> None:
    kernels = LayerTimes(
        own={("a", "forward"): Work(5e-6)}, calls={}, kinds={}, events={("a", "forward"): 9}, made_calls={},
        step_seconds=40e-6, steps=1, on_device=True,
    )  # fmt: skip
    times = remove_recording_cost(kernels, 20e-6, RecordingCost(1e-6, 1e-6))
    assert seconds(times) == {"a": 5e-6}
    assert times.attribution.overhead == 2.0


def test_a_step_that_takes_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="pass the median of steps"):
        remove_recording_cost(TIMES, 0.0)


def test_phases_become_as_long_as_they_were_clocked() -> None:
    own = {("a", "forward"): Work(1.0), ("b", "forward"): Work(3.0), ("a", "backward"): Work(2.0),
           (OPTIMIZER, "forward"): Work(1.0)}  # fmt: skip
    times = LayerTimes(own, {}, {}, {}, {}, 8.0, 1)  # type: ignore[arg-type]
    shares = [Share("forward", 2.0, 0.2), Share("backward", 6.0, 0.6), Share("optimizer", 0.5, 0.05)]
    found = scale_to_timed_phases(times, shares).own
    assert [work.seconds for work in found.values()] == [0.5, 1.5, 6.0, 0.5]
    assert scale_to_timed_phases(times, [*shares, Share("communication", 1.0, 0.1)]) == times
    assert scale_to_timed_phases(times, [Share("forward", None, None)]) == times
