"""Reads traces from Nsight Systems: the SQLite file of `nsys export --type sqlite`. Executes nothing in it.

Tables and columns are those of NVIDIA's "SQLite Export Schema Reference". nsys creates tables only for what it
recorded, and columns differ between versions, so missing ones are skipped. Each process gives one trace. NVTX ranges
are events of the host: `torch.autograd.profiler.emit_nvtx` gives operators, and a range named "step 7" or "iteration7"
is a step.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autofuse.profiling.trace.trace import Event, Trace, Unreadable, sort_events

MAGIC = b"SQLite format 3\x00"
_KERNELS, _COPIES, _FILLS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
_RANGES = (59, 60)  # NVTX_EVENTS.eventType: pushed and popped on one thread, started and ended on any
# CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind, with Kineto's names.
_WAYS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_MEMORIES = {1: "Pageable", 2: "Pinned", 3: "Device", 4: "Array", 5: "Managed", 6: "Device", 7: "Managed"}
_STEP = re.compile(r"(?:train(?:ing)?[ _]?)?(?:step|iter(?:ation)?)[ _#:=]*(\d+)", re.IGNORECASE)
_OPERATOR = re.compile(r"((?:\w+::)+[\w.:]+|\w+Backward\d*)(?:, (?:seq|op_id) = (\d+).*)?")

Row = dict[str, Any]


def traces_of_nsight_systems(path: Path) -> list[Trace]:
    """Return one trace for each process that used a GPU, in order of the GPUs; without a GPU, one of the rest.

    Raises:
        Unreadable: The file is damaged, or has neither GPU work nor ranges.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)) as file:
            file.row_factory = sqlite3.Row
            return _traces(_Export(file), path)
    except sqlite3.Error as error:
        raise Unreadable(f"{path} cannot be read as an export of Nsight Systems: {error}.") from error


class _Export:
    """The tables of the file."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file
        self._tables = {
            row[0] for row in file.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        }
        self._texts = {row["id"]: str(row["value"]) for row in self.rows("StringIds") if "id" in row}

    def rows(self, table: str) -> Iterator[Row]:
        if table in self._tables:
            for row in self._file.execute(f'SELECT * FROM "{table}"'):
                yield dict(row)

    def text(self, row: Row, *columns: str) -> str:
        """Return the first of these columns that has a text, or the number of one in StringIds."""
        for column in columns:
            value = row.get(column)
            if isinstance(value, str) and value:
                return value
            if isinstance(value, int) and value in self._texts:
                return self._texts[value]
        return ""


def _traces(export: _Export, path: Path) -> list[Trace]:
    events: dict[int, list[Event]] = defaultdict(list)
    devices: dict[int, set[int]] = defaultdict(set)
    left_out = 0
    for process, event in _all_events(export):
        if event is None:
            left_out += 1
            continue
        events[process].append(event)
        if event.category in ("kernel", "gpu_memcpy", "gpu_memset"):
            devices[process].add(int(event.process))
    if not events:
        raise Unreadable(
            f"{path} has neither GPU work nor ranges: record with --trace=cuda,nvtx, and export the report with "
            "`nsys export --type sqlite`."
        )
    shown = sorted(devices, key=lambda process: (min(devices[process]), process)) or list(events)[:1]
    described = tuple(_devices(export))
    if 0 in events and shown != [0]:  # work without a process belongs to the first one
        for process in shown[:1]:
            events[process] += events[0] if process else []
    return [
        Trace(sort_events(events[process]), described, name=path.name, left_out=left_out if at == 0 else 0)
        for at, process in enumerate(shown)
    ]


def _all_events(export: _Export) -> Iterator[tuple[int, Event | None]]:
    for row in export.rows(_KERNELS):
        name = export.text(row, "demangledName", "shortName", "mangledName", "name")
        yield _process(row.get("globalPid")), _work_event(row, "kernel", name, **_launch_event(row))
    for row in export.rows(_COPIES):
        yield (
            _process(row.get("globalPid")),
            _work_event(row, "gpu_memcpy", _copy_event(row), bytes=row.get("bytes") or 0),
        )
    for row in export.rows(_FILLS):
        yield _process(row.get("globalPid")), _work_event(row, "gpu_memset", "Memset", bytes=row.get("bytes") or 0)
    for table in _CALLS:
        for row in export.rows(table):
            name = re.sub(r"_v\d+(_ptsz)?$", "", export.text(row, "nameId", "name"))
            args = {"correlation": row.get("correlationId") or 0}
            yield _process(row.get("globalTid")), _host_event(row, "cuda_runtime", name, args)
    for row in export.rows("NVTX_EVENTS"):
        if row.get("eventType", _RANGES[0]) in _RANGES and row.get("end") is not None:
            yield _process(row.get("globalTid")), _nvtx_range(row, export.text(row, "text", "textId"))


def _work_event(row: Row, category: str, name: str, **args: Any) -> Event | None:
    start, end = row.get("start"), row.get("end")
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    device, stream = row.get("deviceId") or 0, row.get("streamId") or 0
    args |= {"device": device, "stream": stream, "correlation": row.get("correlationId") or 0}
    return Event(name, category, start, max(0, end - start), device, stream, args)


def _host_event(row: Row, category: str, name: str, args: Row) -> Event | None:
    start, end = row.get("start"), row.get("end")
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    thread = row.get("globalTid") or 0
    return Event(name, category, start, max(0, end - start), _process(thread), thread & 0xFFFFFF, args)


def _nvtx_range(row: Row, name: str) -> Event | None:
    if step := _STEP.fullmatch(name.strip()):
        return _host_event(row, "user_annotation", f"ProfilerStep#{step[1]}", {})
    operator = _OPERATOR.fullmatch(name)
    if operator is None:
        return _host_event(row, "user_annotation", name, {})
    return _host_event(row, "cpu_op", operator[1], {"Sequence number": int(operator[2])} if operator[2] else {})


def _launch_event(row: Row) -> Row:
    found: Row = {}
    for kind in ("grid", "block"):
        if all(isinstance(row.get(kind + axis), int) for axis in "XYZ"):
            found[kind] = [row[kind + axis] for axis in "XYZ"]
    if isinstance(row.get("registersPerThread"), int):
        found["registers per thread"] = row["registersPerThread"]
    if isinstance(row.get("staticSharedMemory"), int):
        found["shared memory"] = row["staticSharedMemory"] + (row.get("dynamicSharedMemory") or 0)
    return found


def _copy_event(row: Row) -> str:
    way = _WAYS.get(row.get("copyKind") or 0, "copy")
    source, target = (_MEMORIES.get(row.get(kind) or 0, "Unknown") for kind in ("srcKind", "dstKind"))
    return f"Memcpy {way} ({source} -> {target})"


def _process(number: Any) -> int:
    """Return the process in nsys's serialised number: hardware, machine, process and thread in one integer."""
    return (number >> 24) & 0xFFFFFF if isinstance(number, int) else 0


def _devices(export: _Export) -> Iterator[Row]:
    """Yield the GPUs with Kineto's keys. Values that a version of nsys does not export are left out."""
    for row in export.rows("TARGET_INFO_GPU"):
        number = row.get("cuDevice") if isinstance(row.get("cuDevice"), int) else row.get("id")
        properties = {
            "id": number, "name": row.get("name"), "numSms": row.get("smCount"), "warpSize": row.get("threadsPerWarp"),
            "computeMajor": row.get("computeMajor"), "computeMinor": row.get("computeMinor"),
            "regsPerMultiprocessor": row.get("maxRegistersPerSm"),
            "sharedMemPerMultiprocessor": row.get("maxShmemPerSm"), "sharedMemPerBlock": row.get("maxShmemPerBlock"),
        }  # fmt: skip
        warps = row.get("maxWarpsPerSm")
        properties["maxThreadsPerMultiprocessor"] = warps * (row.get("threadsPerWarp") or 32) if warps else None
        yield {key: value for key, value in properties.items() if value is not None}
