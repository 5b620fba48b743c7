"""Reads traces from AMD's rocprofv3 and rocprof, as JSON.

rocprofv3 (`--output-format json`) writes records of ROCprofiler-SDK under "rocprofiler-sdk-tool", with one entry per
process. rocprof (versions 1 and 2) wrote Chrome's trace events without categories, in processes named GPU0, COPY, CPU
HIP API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autofuse.profiling.trace.trace import Event, Trace, integer, sort_events

KEY = "rocprofiler-sdk-tool"
_GPU = 2  # rocprofiler_agent_type_t
_PROCESSES = (
    (re.compile(r"(\d+ )?GPU ?\d+"), "kernel"), (re.compile(r"(\d+ )?COPY"), "gpu_memcpy"),
    (re.compile(r".*HIP API"), "hip_runtime"), (re.compile(r".*(Markers|ROCTX).*", re.IGNORECASE), "user_annotation"),
)  # fmt: skip
_STEP = re.compile(r"(?:train(?:ing)?[ _]?)?(?:step|iter(?:ation)?)[ _#:=]*(\d+)", re.IGNORECASE)
_COPY_WAYS = {"HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD"}

Record = Mapping[str, Any]


def traces_of_rocprof(content: Record, name: str) -> list[Trace]:
    """Return one trace for each process in a file of rocprofv3. Records without a time are left out and counted."""
    tools = content.get(KEY)
    found = [tool for tool in (tools if isinstance(tools, list) else [tools]) if isinstance(tool, dict)]
    return [_trace(tool, name) for tool in found]


def with_categories(content: Record) -> Record:
    """Return a trace of rocprof with categories, from the names of its processes. Other traces stay as they are."""
    listed = content.get("traceEvents")
    if not isinstance(listed, list):
        return content
    kinds: dict[Any, str] = {}
    for entry in listed:
        if isinstance(entry, dict) and entry.get("ph") == "M" and entry.get("name") == "process_name":
            args = entry.get("args")
            named = str(args.get("name", "")) if isinstance(args, dict) else ""
            kind = next((kind for pattern, kind in _PROCESSES if pattern.fullmatch(named.strip())), "")
            if kind:
                kinds[str(entry.get("pid"))] = kind
    if not kinds or any(isinstance(e, dict) and e.get("cat") and e.get("ph") == "X" for e in listed):
        return content
    return {**content, "traceEvents": [_with_category(entry, kinds) for entry in listed]}


def _with_category(entry: Any, kinds: Mapping[Any, str]) -> Any:
    kind = kinds.get(str(entry.get("pid"))) if isinstance(entry, dict) else None
    if not kind or entry.get("ph") != "X":
        return entry
    raw = entry.get("args")
    args = dict(raw) if isinstance(raw, dict) else {}
    args |= {"device": args.get("dev-id", 0), "stream": args.get("queue-id", entry.get("tid", 0))}
    return {**entry, "cat": kind, "args": args if kind in ("kernel", "gpu_memcpy") else raw}


def _trace(tool: Record, name: str) -> Trace:
    agents = {_handle_number(agent.get("id")): agent for agent in _dicts_in(tool, "agents")}
    gpus = [handle for handle, agent in agents.items() if agent.get("type") == _GPU]
    numbers = {handle: at for at, handle in enumerate(gpus)}
    read = [
        *(_kernel_event(record, _kernel_names(tool), numbers) for record in _buffer_records(tool, "kernel_dispatch")),
        *(
            _copy_event(record, _operations(tool, "MEMORY_COPY"), numbers)
            for record in _buffer_records(tool, "memory_copy")
        ),
        *(
            _call_event(record, _operations(tool, kind))
            for kind in _API
            for record in _buffer_records(tool, kind.lower())
        ),
        *(_mark_event(record) for record in _buffer_records(tool, "marker_api")),
    ]
    events = [event for event in read if event is not None]
    devices = tuple(_device(agents[handle], at) for handle, at in numbers.items())
    return Trace(sort_events(events), devices, name=name, left_out=len(read) - len(events))


_API = ("HIP_API", "HIP_RUNTIME_API", "HIP_RUNTIME_API_EXT")


def _kernel_event(record: Record, names: Mapping[Any, str], numbers: Mapping[Any, int]) -> Event | None:
    raw = record.get("dispatch_info")
    info: Record = raw if isinstance(raw, dict) else {}
    group, grid = _three_sizes(info.get("workgroup_size")), _three_sizes(info.get("grid_size"))
    args: dict[str, Any] = {"shared memory": info.get("group_segment_size") or 0}
    if group and grid:  # rocprof's grid counts work-items, Kineto's counts blocks
        args |= {"block": group, "grid": [-(-whole // part) for whole, part in zip(grid, group, strict=True)]}
    device = numbers.get(_handle_number(info.get("agent_id")), 0)
    name = names.get(integer(info.get("kernel_id")), "kernel")
    queue = _handle_number(record.get("stream_id")) or _handle_number(info.get("queue_id")) or 0
    return _make_event(record, name, "kernel", device, queue, args | {"device": device, "stream": queue})


def _copy_event(record: Record, operations: Sequence[str], numbers: Mapping[Any, int]) -> Event | None:
    at = integer(record.get("operation")) or 0
    named = operations[at] if at < len(operations) else ""
    way = next((short for long, short in _COPY_WAYS.items() if long in named), "")
    source, target = _handle_number(record.get("src_agent_id")), _handle_number(record.get("dst_agent_id"))
    if not way:
        way = {(False, True): "HtoD", (True, False): "DtoH", (True, True): "DtoD"}.get(
            (source in numbers, target in numbers), "copy"
        )
    device = numbers.get(target, numbers.get(source, 0))
    args = {"device": device, "stream": "copy", "bytes": record.get("bytes") or 0}
    return _make_event(record, f"Memcpy {way}", "gpu_memcpy", device, "copy", args)


def _call_event(record: Record, operations: Sequence[str]) -> Event | None:
    at = integer(record.get("operation")) or 0
    name = operations[at] if at < len(operations) else f"hip call {at}"
    return _make_event(record, name, "hip_runtime", 0, record.get("thread_id", 0), {})


def _mark_event(record: Record) -> Event | None:
    args = record.get("args")
    message = args.get("message") if isinstance(args, dict) else None
    name = str(message or record.get("message") or "")
    step = _STEP.fullmatch(name.strip())
    name = f"ProfilerStep#{step[1]}" if step else name
    return _make_event(record, name, "user_annotation", 0, record.get("thread_id", 0), {}) if name else None


def _make_event(
    record: Record, name: str, category: str, process: Any, thread: Any, args: dict[str, Any]
) -> Event | None:
    start, end = integer(record.get("start_timestamp")), integer(record.get("end_timestamp"))
    if start is None or end is None or end < start:
        return None
    raw = record.get("correlation_id")
    internal = raw.get("internal") if isinstance(raw, dict) else raw
    return Event(name, category, start, end - start, process, thread, {**args, "correlation": integer(internal) or 0})


def _kernel_names(tool: Record) -> dict[Any, str]:
    found: dict[Any, str] = {}
    for at, symbol in enumerate(_dicts_in(tool, "kernel_symbols")):
        number = integer(symbol.get("kernel_id", symbol.get("id", at)))
        keys = ("demangled_kernel_name", "formatted_kernel_name", "truncated_kernel_name", "kernel_name")
        found[number] = next((str(symbol[key]) for key in keys if symbol.get(key)), "kernel")
    return found


def _operations(tool: Record, kind: str) -> Sequence[str]:
    """Return the names of the operations of one kind of record, in order of their numbers."""
    strings = tool.get("strings")
    raw = strings.get("buffer_records") if isinstance(strings, dict) else None
    for entry in raw if isinstance(raw, list) else ():
        if isinstance(entry, dict) and str(entry.get("kind", "")).upper().removeprefix("ROCPROFILER_") == kind:
            operations = entry.get("operations")
            return [str(o) for o in operations] if isinstance(operations, list) else []
    return []


def _buffer_records(tool: Record, kind: str) -> Iterator[Record]:
    records = tool.get("buffer_records")
    raw = records.get(kind) if isinstance(records, dict) else None
    yield from (record for record in (raw if isinstance(raw, list) else ()) if isinstance(record, dict))


def _dicts_in(tool: Record, key: str) -> Iterator[Record]:
    raw = tool.get(key)
    yield from (one for one in (raw if isinstance(raw, list) else ()) if isinstance(one, dict))


def _handle_number(value: Any) -> Any:
    return value.get("handle") if isinstance(value, dict) else value


def _three_sizes(value: Any) -> list[int] | None:
    if not isinstance(value, dict):
        return None
    found = [integer(value.get(axis)) for axis in "xyz"]
    return [n for n in found if n] if all(found) else None


def _device(agent: Record, number: int) -> dict[str, Any]:
    """Return a GPU with Kineto's keys. A compute unit holds waves_per_simd x simd_per_cu waves."""
    wave = integer(agent.get("wave_front_size")) or 64
    waves = (integer(agent.get("max_waves_per_simd")) or 0) * (integer(agent.get("simd_per_cu")) or 0)
    properties = {
        "id": number, "name": agent.get("product_name") or agent.get("name"), "numSms": agent.get("cu_count"),
        "warpSize": wave, "maxThreadsPerMultiprocessor": waves * wave or None,
    }  # fmt: skip
    return {key: value for key, value in properties.items() if value is not None}
