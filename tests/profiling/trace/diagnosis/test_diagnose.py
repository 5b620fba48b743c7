"""The diagnosis of simulated traces, whose cause is known (tests/profiling/trace/causes.py)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autofuse.profiling.trace.profile import profile_of_traces
from autofuse.profiling.trace.trace import Trace
from autofuse.results.diagnosis import Diagnosis
from autofuse.results.profile import Profile
from tests.profiling.trace.building import mark, op, step, trace
from tests.profiling.trace.causes import CAUSES, Cause, job, layers, trace_of
from tests.profiling.trace.machine import DEVICES, Machine, Shape
from tests.profiling.trace.more_causes import MORE

SHAPES = {
    "everything": Shape(),
    "no steps": Shape(steps=False),
    "no correlation": Shape(correlation=False),
    "shapes": Shape(flops=True),
    "kernels alone": Shape(host=False, steps=False),
}


def diagnosis(*traces: Trace) -> Diagnosis:
    found = profile_of_traces(list(traces)).diagnosis
    assert found is not None
    return found


def check(cause: Cause, found: Diagnosis) -> None:
    assert found.limit == cause.limit, found
    assert found.sentence and len(found.actions) <= 3
    if cause.kinds:
        assert found.actions[0].kind in cause.kinds, found
        assert found.actions[0].text and found.actions[0].evidence
    else:
        assert "nothing" in found.sentence or "what else" in found.sentence


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_named_for_every_kind_of_trace(name: str, shape: str) -> None:
    if CAUSES[name].host and not SHAPES[shape].host:
        pytest.skip("only the host's side tells this cause")
    check(CAUSES[name], diagnosis(trace_of(CAUSES[name], SHAPES[shape])))


@pytest.mark.parametrize("device", [name for name in DEVICES if name != "H100"])
@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_named_on_other_devices(name: str, device: str) -> None:
    found = diagnosis(trace_of(CAUSES[name], Shape(device=device)))
    check(CAUSES[name], found)
    if device != "unknown":
        return
    assert "NVIDIA" not in found.sentence and "tensor cores" not in "".join(a.text for a in found.actions)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [name for name, cause in CAUSES.items() if cause.limit != "compute"])
def test_the_larger_cause_is_named_of_two(name: str, seed: int) -> None:
    """A quarter of the step is a model without a problem, and a small part has another cause."""
    cause = CAUSES[name]

    def body(m: Machine) -> None:
        cause.body(m)
        layers(m, 3)
        m.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 100)

    check(cause, diagnosis(trace_of(replace(cause, body=body), Shape(), seed)))


@pytest.mark.parametrize("name", MORE)
def test_causes_that_were_not_used_to_choose_thresholds_are_named(name: str) -> None:
    cause, shape = MORE[name]
    check(cause, diagnosis(trace_of(cause, shape, seed=11)))


@pytest.mark.night
@pytest.mark.parametrize("factor", [0.3, 2.0])
@pytest.mark.parametrize("name", MORE)
def test_they_are_named_in_shorter_longer_and_noisier_steps(name: str, factor: float) -> None:
    cause, shape = MORE[name]
    if shape.flops and factor > 1:
        pytest.skip("the same products in twice the time use the GPU half as well")

    def body(m: Machine) -> None:
        m.stretch, m.noise = factor, 0.4
        cause.body(m)

    for seed in range(3):
        check(cause, diagnosis(trace_of(replace(cause, body=body), shape, seed)))


@pytest.mark.parametrize(
    ("late", "why", "kind"), [(2, "data", "straggler-data"), (0, "host", "straggler-host"), (1, "gpu", "slow-gpu")]
)
@pytest.mark.parametrize("ranks", [3, 5])
def test_a_rank_that_comes_last_is_named_with_its_reason(late: int, why: str, kind: str, ranks: int) -> None:
    found = diagnosis(*job(late, why, ranks))
    assert found.limit == "straggler" and f"rank {late} " in found.sentence
    assert found.actions[0].kind == kind


def test_ranks_that_are_late_in_turns_have_no_straggler() -> None:
    found = diagnosis(*job(None, "gpu", 4))
    assert found.limit == "communication" and found.actions[0].kind == "balance"


def test_ranks_that_wait_for_data_together_wait_for_data() -> None:
    def waits(m: Machine) -> None:
        CAUSES["slow workers of the loader"].body(m)
        m.launch("allreduce", 300, stream=20, after=m.free[7], op="c10d::allreduce_")

    machines = [Machine(Shape(), 0, rank, 2) for rank in range(2)]
    for m in machines:
        for number in range(3):
            m.step(number, waits)
    assert diagnosis(*(m.trace() for m in machines)).limit == "data"


def test_actions_are_ranked_and_predict_less_than_the_step() -> None:
    for name, cause in CAUSES.items():
        made = profile_of_traces([trace_of(cause, Shape())])
        assert made.diagnosis is not None
        for action in made.diagnosis.actions:
            saved = action.milliseconds
            assert saved is None or 0 <= saved <= made.timing.median * 1e3 * 1.2, (name, action)


def test_it_is_written_and_read_back() -> None:
    profile = profile_of_traces([trace_of(CAUSES["slow Python"], Shape())])
    written = json.loads(profile.to_json())["diagnosis"]
    assert written["class"] == "launch" and written["sentence"].startswith("Launch-bound")
    assert set(written["actions"][0]) == {"kind", "text", "milliseconds", "evidence", "confidence"}
    assert Profile.from_dict(json.loads(profile.to_json())) == profile


def test_an_empty_trace_has_no_diagnosis() -> None:
    assert profile_of_traces([trace()]).diagnosis is None


@pytest.mark.parametrize(
    ("entries", "limit"),
    [
        ([op("aten::mm", 0, 10), op("aten::mm", 500, 10), op("aten::add", 900, 10)], "launch"),
        ([op("aten::mm", 0, 900)], "compute"),
        ([op("aten::mul", 0, 900)], "memory"),
        ([op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 600), op("aten::mm", 600, 400)], "data"),
    ],
)
def test_a_step_on_a_cpu(entries: list[dict[str, object]], limit: str) -> None:
    assert diagnosis(trace(step(1, 0, 1000), *entries, devices=[])).limit == limit


def test_advice_for_ranks_on_cpus_names_no_gpu() -> None:
    """Rank 1 sleeps before its collective, so rank 0 waits in it."""
    ranks = [
        trace(
            step(1, 0, 1000), op("aten::mm", 0, 100), mark("gloo:all_reduce", begins, 1000 - begins, 2),
            devices=[], rank=rank, world=2,
        )
        for rank, begins in ((0, 110), (1, 950))
    ]  # fmt: skip
    found = diagnosis(*ranks)
    assert found.limit == "straggler" and "rank 1 comes last" in found.sentence
    assert "GPU" not in found.sentence + "".join(action.text for action in found.actions)
