"""A whole profile from traces only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autofuse.profiling.trace.profile import profile_of_traces
from autofuse.profiling.trace.trace import parse_trace
from autofuse.results.ladder import LEVELS
from autofuse.results.profile import Profile
from tests.profiling.trace.building import H100, SECOND, kernel, launch, mark, op, step, trace
from tests.profiling.trace.test_nsight import RAW


def test_a_trace_gives_every_level_in_order_and_survives_json() -> None:
    profile = profile_of_traces([trace(step(1, 0, 100), launch(1, 2), kernel(10, 50, 66, 1024, correlation=1))])
    assert [level.name for level in profile.ladder] == [kind.name for kind in LEVELS]
    assert (profile.level("busy").value, profile.level("sm_efficiency").value) == (0.5, 0.25)
    assert all(level.value is not None or level.reason for level in profile.ladder)
    assert profile.kind == "trace" and profile.name == "trace.json"
    assert profile.environment["device"] == "NVIDIA H100 80GB HBM3"
    assert Profile.from_dict(json.loads(profile.to_json())) == profile


def test_one_block_for_ten_seconds() -> None:
    profile = profile_of_traces([trace(kernel(0, 10 * SECOND, 1, 1024))])
    assert profile.timing.median == 10.0
    assert profile.level("busy").value == 1.0
    assert round(profile.level("sm_efficiency").value or 0, 4) == 0.0076
    assert profile.level("sm_efficiency").loss == pytest.approx(131 / 132)


def test_steps_have_their_lengths() -> None:
    steps = [step(1, 0, 100), step(2, 100, 300), step(3, 400, 200)]
    profile = profile_of_traces([trace(*steps, *(op("aten::mm", at, 10) for at in (10, 110, 410)))])
    assert profile.timing.seconds == pytest.approx((100e-6, 300e-6, 200e-6))


def test_steps_that_are_only_counted_have_their_average() -> None:
    marks = [mark("Optimizer.step#SGD.step", at, 10) for at in (20, 90)]
    assert profile_of_traces([trace(op("aten::mm", 0, 10), *marks)]).timing.seconds == pytest.approx((50e-6,))


def test_the_numbers_of_the_slowest_rank_are_shown() -> None:
    traces = [
        trace(step(1, 0, length), kernel(0, 50, 132), rank=rank, world=2) for rank, length in ((0, 100), (1, 200))
    ]
    profile = profile_of_traces(traces)
    assert (profile.level("busy").value, profile.timing.median) == (0.25, pytest.approx(200e-6))
    assert [(rank.rank, rank.busy) for rank in profile.ranks] == [(0, 0.5), (1, 0.25)]
    assert any("rank 1, the slowest" in note for note in profile.notes)


def test_a_report_of_nsight_compute_fills_its_levels(tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text(RAW)
    profile = profile_of_traces([trace(kernel(0, 10))], tmp_path / "report.csv")
    assert profile.level("issue_slots").value == pytest.approx(0.375)


def test_a_trace_without_events_gives_only_a_note() -> None:
    profile = profile_of_traces([trace()])
    assert any("there is nothing to report" in note for note in profile.notes)
    assert json.loads(profile.to_json())


ODD: tuple[Any, ...] = (
    None,
    "",
    -1,
    0,
    1e30,
    "x",
    [],
    {},
    True,
    float("nan"),
    float("inf"),
    2**70,
    [1, 2],
    "ProfilerStep#1",
)


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_invalid_field_invalidates_only_its_event(odd: Any) -> None:
    entries = (step(1, 0, 100), op("aten::mm", 1, 5), launch(1, 2), kernel(10, 50, 66, 1024, correlation=1))
    for broken in entries:
        for field in [*broken, *broken["args"]]:
            changed = (
                {**broken, "args": {**broken["args"], field: odd}}
                if field in broken["args"]
                else {**broken, field: odd}
            )
            others = [entry for entry in entries if entry is not broken]
            profile = profile_of_traces([parse_trace({"traceEvents": [*others, changed], "deviceProperties": [H100]})])
            values = [level.value for level in profile.ladder if level.value is not None]
            assert all(0 <= value <= 1 for value in values) and json.loads(profile.to_json())


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_oddly_described_device_is_read_as_far_as_possible(odd: Any) -> None:
    for field in H100:
        profile = profile_of_traces([trace(kernel(0, 50, 66, 1024), devices=[{**H100, field: odd}])])
        assert profile.level("busy").value == 1.0
        assert all(0 <= level.value <= 1 for level in profile.ladder if level.value is not None)


def test_no_trace_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one trace"):
        profile_of_traces([])


def test_a_mean_that_differs_from_the_median_is_reported() -> None:
    def sentences(*lengths: int) -> bool:
        starts = [sum(lengths[:n]) for n in range(len(lengths))]
        steps = [step(n, start, length) for n, (start, length) in enumerate(zip(starts, lengths, strict=True))]
        work = [kernel(start, 10) for start in starts]
        return any("mean step" in note for note in profile_of_traces([trace(*steps, *work)]).notes)

    assert sentences(100, 100, 300) and not sentences(100, 100, 101)
