"""The diagnosis of live profiles from their numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autofuse.profiling.trace.diagnosis.of_profile import diagnose_profile
from autofuse.profiling.trace.profile import profile_of_traces
from autofuse.profiling.trace.scope import scope_of
from autofuse.results.comparison import Estimate, Interval
from autofuse.results.profile import Attribution, Layer, Place, Probe, Profile, Rank, Work
from tests.profiling.trace.building import op, step, trace

RECORDED = trace(step(1, 0, 1000), *(op("aten::mm", at, 50) for at in range(0, 1000, 100)), devices=[])


def build(**changes: object) -> Profile:
    """A profile in which half of the recorded step is Python."""
    return replace(profile_of_traces([RECORDED]), kind="live", **changes)  # type: ignore[arg-type]


def limit(profile: Profile) -> str:
    found = diagnose_profile(profile, scope_of(RECORDED))
    assert found is not None
    return found.limit


def test_without_a_recording_there_is_none() -> None:
    assert diagnose_profile(build(), None) is None


def test_time_that_recording_adds_is_not_a_cause() -> None:
    assert limit(build()) == "launch"
    assert limit(build(attribution=Attribution(overhead=1.9))) == "compute"


@pytest.mark.parametrize(("ratio", "expected"), [(1.1, "launch"), (1.95, "launch")])
def test_the_doubled_batch_takes_precedence_over_the_recording(ratio: float, expected: str) -> None:
    probe = Probe(ratio, Estimate(ratio, Interval(ratio, ratio)).interval, "overhead")
    assert limit(build(probe=probe)) == expected
    if ratio > 1.9:
        assert limit(build(probe=probe, attribution=Attribution(overhead=1.9))) == "compute"


def test_rules_that_apply_are_the_kernels_to_fuse() -> None:
    place = Place("AF101", "applies", seconds=0.0008, predicted_seconds=0.0004)
    layer = Layer("h.0", "Attention", 1, Work(), Work(), Work(), Work(), places=(place,))
    found = diagnose_profile(build(layers=(layer,), attribution=Attribution(overhead=1.9)), scope_of(RECORDED))
    assert found is not None and found.limit == "fusable"
    assert found.actions[0].kind == "optimize" and found.actions[0].milliseconds == 0.4


@pytest.mark.parametrize(("waits", "late"), [((0.0, 0.5e-3), 0), ((0.5e-3, 0.0), 1), ((0.02e-3, 0.0), None)])
def test_the_rank_that_waits_least_is_late_if_the_others_wait_long(
    waits: tuple[float, float], late: int | None
) -> None:
    ranks = tuple(Rank(rank, 1e-3, wait, wait) for rank, wait in enumerate(waits))
    found = diagnose_profile(build(ranks=ranks, attribution=Attribution(overhead=1.9)), scope_of(RECORDED))
    assert found is not None
    assert (found.limit == "straggler") == (late is not None)
    assert late is None or f"rank {late} comes last" in found.sentence
