"""Reading trace files: current and old formats of Kineto, other writers, and files that are not traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from autofuse.profiling.trace.trace import Unreadable, decimal, integer, nanoseconds, parse_trace, read

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 2.5, "dur": 1.25, "pid": 1, "tid": 2}


def written(folder: Path, content: Any, name: str = "trace.json") -> Path:
    path = folder / name
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("content", [[EVENT], {"traceEvents": [EVENT]}])
def test_an_object_or_a_bare_array_gzipped_or_not_is_a_trace(tmp_path: Path, name: str, content: Any) -> None:
    (event,) = read(written(tmp_path, content, name)).events
    assert (event.name, event.category, event.start, event.duration) == ("aten::mm", "cpu_op", 2500, 1250)


def test_a_gzipped_file_needs_no_suffix(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress(json.dumps([EVENT]).encode()))
    assert len(read(path).events) == 1


@pytest.mark.parametrize(
    "text, exact",
    [
        ("1712195495502094.503", 1712195495502094503),  # since 1970, which a float cannot tell to the nanosecond
        ("1683564901548726", 1683564901548726000),
        ("4203669603187.439", 4203669603187439),
        ('"17.5"', 17500),
    ],
)
def test_times_are_exact_to_the_nanosecond(tmp_path: Path, text: str, exact: int) -> None:
    path = written(tmp_path, f'[{{"ph": "X", "name": "k", "cat": "kernel", "ts": {text}, "dur": 1}}]'.encode())
    assert read(path).events[0].start == exact


def test_events_come_by_their_beginnings_the_outer_first() -> None:
    late, inner, outer = ({**EVENT, "ts": ts, "dur": dur, "name": name} for ts, dur, name in
                          ((5, 1, "late"), (1, 2, "inner"), (1, 3, "outer")))  # fmt: skip
    assert [event.name for event in parse_trace([late, inner, outer]).events] == ["outer", "inner", "late"]


def test_entries_without_a_time_are_left_out_and_counted() -> None:
    broken: list[Any] = [
        {"ph": "X", "name": "no time"},
        {**EVENT, "ts": "soon"},
        {**EVENT, "ts": None},
        {**EVENT, "ts": float("nan")},
    ]
    found = parse_trace([EVENT, *broken, None, "text", {"ph": "i", "ts": 1}])
    assert (len(found.events), found.left_out) == (1, 4)


@pytest.mark.parametrize("duration", [-5, None, "x", 0])
def test_a_duration_that_is_none_is_0(duration: Any) -> None:
    assert parse_trace([{**EVENT, "dur": duration}]).events[0].duration == 0


def test_arguments_that_are_none_are_empty() -> None:
    assert parse_trace([{**EVENT, "args": "text"}]).events[0].args == {}


@pytest.mark.parametrize(
    "old, new",
    [
        ("Kernel", "kernel"),
        ("Runtime", "cuda_runtime"),
        ("Operator", "cpu_op"),
        ("Memcpy", "gpu_memcpy"),
        ("Memset", "gpu_memset"),
    ],
)
def test_categories_of_old_versions_have_the_current_names(old: str, new: str) -> None:
    assert parse_trace([{**EVENT, "cat": old}]).events[0].category == new


def test_the_profiler_before_kineto_gave_each_device_a_process() -> None:
    entries = [
        {"ph": "X", "name": "k", "ts": 0, "dur": 1, "pid": f"{kind} functions", "tid": 0} for kind in ("CPU", "CUDA")
    ]
    assert [event.category for event in parse_trace(entries).events] == ["cpu_op", "kernel"]


def test_invalid_numbers_and_invalid_bytes_are_accepted(tmp_path: Path) -> None:
    content = b'[{"ph": "X", "name": "a\xff\tb", "ts": 1, "dur": 1, "args": {"blocks per SM": inf, "x": -nan}}]'
    (event,) = read(written(tmp_path, content)).events
    assert event.args == {"blocks per SM": None, "x": None}


def test_the_number_of_ranks_may_be_missing() -> None:
    assert (parse_trace([EVENT]).rank, parse_trace([EVENT]).world) == (None, None)
    told = parse_trace({"traceEvents": [], "distributedInfo": {"backend": "nccl", "rank": "3", "world_size": 8}})
    assert (told.rank, told.world) == (3, 8)
    assert parse_trace({"traceEvents": [], "distributedInfo": "lost", "deviceProperties": "lost"}).devices == ()


@pytest.mark.parametrize(
    "content, why",
    [
        (b"", "it is empty"),
        (b'{"traceEvents": [{"ph": "X", "na', "ends in the middle"),
        (b'[{"ph": "X"}, ', "ends in the middle"),
        (b"PK\x03\x04 something else", "it is not JSON"),
        (b'{"schemaVersion": 1}', "it has no traceEvents"),
        (b'"text"', "it has no traceEvents"),
        (gzip.compress(json.dumps([EVENT] * 99).encode())[:-20], "ends in the middle"),
        (b"\x1f\x8b\x08\x00" + b"\xff" * 40, "cannot be unpacked"),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused_with_a_reason(tmp_path: Path, content: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read(written(tmp_path, content))


def test_numbers_as_text_and_none() -> None:
    assert (integer("7"), integer(7.0), integer("x"), integer(None), integer(True)) == (7, 7, None, None, None)
    assert (decimal("0.5"), decimal(float("inf")), decimal([1])) == (0.5, None, None)
    assert (nanoseconds("x"), nanoseconds(None), nanoseconds(1e400)) == (None, None, None)


@pytest.mark.parametrize("content", ['{"traceEvents": []}', "[]", '[{"ph": "M"}, 7, {"ph": "X", "name": "a"}]'])
def test_a_file_without_an_event_is_not_a_trace(content: str, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text(content)
    with pytest.raises(Unreadable, match="has an empty trace"):
        read(tmp_path / "empty.json")
