"""The annotated trace: all events stay, and the new tracks are nested as viewers of traces need them."""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import replace
from typing import Any

from autofuse.profiling.trace.annotated import annotate_trace
from autofuse.profiling.trace.profile import profile_of_traces
from autofuse.profiling.trace.trace import parse_trace
from autofuse.results.profile import Place
from tests.profiling.trace.building import Entry, kernel, launch, mark, op, step


def content(gpu: bool = True) -> dict[str, Any]:
    """Two steps of a model with two blocks; each block has an attention of two operators."""
    entries: list[Entry] = []
    for number in range(2):
        at = number * 2000.0
        entries += [step(number, at, 1500), mark("mod::", at + 10, 1000)]
        for block in range(2):
            start = at + 20 + 400 * block
            entries += [mark(f"mod::h.{block}", start, 300), mark(f"mod::h.{block}.attn", start + 10, 200)]
            for i in range(2):
                number_of_launch = 100 * number + 10 * block + i + 1
                entries += [op("aten::mm", start + 20 + 60 * i, 50)]
                if gpu:
                    entries += [launch(number_of_launch, start + 30 + 60 * i)]
                    entries += [kernel(start + 100 + 120 * i, 100, name="gemm", correlation=number_of_launch)]
    return {"traceEvents": entries, "schemaVersion": 1}


def build(gpu: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    raw = content(gpu)
    trace = parse_trace(raw, "t.json")
    profile = profile_of_traces([trace])
    place = Place("AF101", "applies", seconds=2e-4, predicted_seconds=1e-4)
    layers = tuple(
        replace(layer, places=(place, Place("AF201", "declined"))) if layer.fqn.endswith("attn") else layer
        for layer in profile.layers
    )
    before = copy.deepcopy(raw)
    found = annotate_trace(raw, trace, replace(profile, layers=layers))
    assert raw == before
    return raw, found


def tracks(found: dict[str, Any]) -> dict[str, list[Entry]]:
    ours = [e for e in found["traceEvents"] if e.get("pid") == 2]
    names = {e["tid"]: e["args"]["name"] for e in ours if e["ph"] == "M" and e["name"] == "thread_name"}
    slices: defaultdict[str, list[Entry]] = defaultdict(list)
    for e in ours:
        if e["ph"] == "X":
            slices[names[e["tid"]]].append(e)
    return dict(slices)


def test_every_event_of_the_trace_stays_unchanged() -> None:
    raw, found = build()
    assert found["traceEvents"][: len(raw["traceEvents"])] == raw["traceEvents"]
    assert found["schemaVersion"] == 1


def test_there_are_tracks_of_phases_rules_and_layers() -> None:
    found = tracks(build()[1])
    assert list(found) == ["phases", "rules", "layers as the host calls them", "layers on GPU 0, stream 7"]
    assert {e["name"] for e in found["phases"]} == {"forward"}
    assert [e["name"] for e in found["layers as the host calls them"][:3]] == ["(the model itself)", "h.0", "h.0.attn"]
    assert {(e["name"], e["args"]["layer"]) for e in found["rules"]} == {
        ("AF101 applies, predicted to save 0.1 ms a step", f"h.{block}.attn") for block in range(2)
    }


def test_kernels_of_one_layer_are_one_slice_as_long_as_they_run() -> None:
    slices = tracks(build()[1])["layers on GPU 0, stream 7"]
    assert [(e["name"], e["ts"], e["dur"], e["args"]["kernels"]) for e in slices[:2]] == [
        ("h.0.attn", 120.0, 220.0, 2), ("h.1.attn", 520.0, 220.0, 2),
    ]  # fmt: skip


def test_a_trace_of_a_cpu_has_no_track_of_a_gpu() -> None:
    assert list(tracks(build(gpu=False)[1])) == ["phases", "rules", "layers as the host calls them"]


def test_the_slices_of_a_track_are_disjoint_or_nested_and_the_file_reads_as_before() -> None:
    raw, found = build()
    for slices in tracks(found).values():
        open_ends: list[float] = []
        for e in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
            while open_ends and open_ends[-1] <= e["ts"]:
                open_ends.pop()
            assert not open_ends or e["ts"] + e["dur"] <= open_ends[-1]
            open_ends.append(e["ts"] + e["dur"])
    one, other = (profile_of_traces([parse_trace(c, "t.json")]) for c in (raw, found))
    assert (one.timing, one.layers, one.kernels) == (other.timing, other.layers, other.kernels)


def test_a_bare_list_of_events_is_annotated_too() -> None:
    raw = content()["traceEvents"]
    trace = parse_trace(raw, "t.json")
    assert len(annotate_trace(raw, trace, profile_of_traces([trace]))["traceEvents"]) > len(raw)


def test_calls_that_are_no_layer_of_the_profile_are_left_out() -> None:
    raw = content()
    trace = parse_trace(raw, "t.json")
    profile = profile_of_traces([trace])
    fewer = replace(profile, layers=tuple(layer for layer in profile.layers if layer.fqn != "h.1"))
    names = {e["name"] for e in tracks(annotate_trace(raw, trace, fewer))["layers as the host calls them"]}
    assert names == {"(the model itself)", "h.0", "h.0.attn", "h.1.attn"}
