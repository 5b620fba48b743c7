"""Reads memory from a snapshot of torch's CUDA allocator: the file of `torch.cuda.memory._dump_snapshot(path)`.

A snapshot is a pickle, and a pickle can execute code. So only plain data is read, and every class or function in it is
refused. The events of the snapshot lead back from the allocations at its end to the peak.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofuse.profiling.trace.trace import Unreadable
from autofuse.results.profile_parts import Memory

MAGIC = b"\x80"
_SHOWN = 3  # how many of the lines that hold most at the peak are listed
_ALIVE = ("active_allocated", "active_pending_free")
_INSIDE = ("/torch/", "/autofuse/", "<frozen", "??")


@dataclass(frozen=True)
class MemorySnapshot:
    """The contents of a snapshot.

    memory: at the peak.
    notes: what holds it, how much is reserved, and whether memory ran out.
    """

    memory: Memory
    notes: tuple[str, ...]


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts, lists, dicts and tuples only."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, but a snapshot has plain data only")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to data outside of the file")


def snapshot_of(path: Path) -> MemorySnapshot:
    """Return the peak of the device that held most.

    Raises:
        Unreadable: The file is not a snapshot.
        OSError: The file cannot be read.
    """
    content = plain_pickle(path)
    if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
        raise Unreadable(f"{path} has no memory snapshot: it has no segments.")
    by_device = {device: _peak(content, device) for device in _devices(content)}
    if not by_device:
        raise Unreadable(f"{path} has an empty memory snapshot: it has no segment and no event.")
    device = max(by_device, key=lambda number: by_device[number][0])
    peak, held, complete = by_device[device]
    kinds: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for size, frames in held:
        kinds[_purpose_of(frames)] += size
        lines[_innermost_line(frames)] += size
    memory = Memory(
        peak, parameters=kinds["parameters"], optimizer=kinds["optimizer"], activations=kinds["activations"],
        others=kinds["others"], source=f"a snapshot of torch's CUDA allocator, GPU {device}",
    )  # fmt: skip
    return MemorySnapshot(memory, (*_notes(content, device, peak, complete), *_largest_lines(lines, peak)))


def plain_pickle(path: Path) -> Any:
    """Read a pickle of plain data.

    Raises:
        Unreadable: The file is no pickle, or a pickle of anything else.
        OSError: The file cannot be read.
    """
    try:
        return _PlainUnpickler(io.BytesIO(path.read_bytes())).load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise Unreadable(f"{path} cannot be read as a memory snapshot: {error}.") from error


def _devices(content: Mapping[str, Any]) -> list[int]:
    found = {_int_or_zero(segment.get("device")) for segment in content["segments"] if isinstance(segment, dict)}
    found |= {at for at, events in enumerate(_traces(content)) if events}
    return sorted(found)


def _traces(content: Mapping[str, Any]) -> list[list[Mapping[str, Any]]]:
    device_traces = content.get("device_traces")
    traces = device_traces if isinstance(device_traces, list) else []
    return [[e for e in events if isinstance(e, dict)] if isinstance(events, list) else [] for events in traces]


Held = list[tuple[int, Sequence[Any]]]


def _peak(content: Mapping[str, Any], device: int) -> tuple[int, Held, bool]:
    """Return the bytes at the peak, the blocks held then with their frames, and whether there are events."""
    alive = {address: (size, frames) for address, size, frames in _blocks(content, device)}
    traces = _traces(content)
    events = traces[device] if device < len(traces) else []
    now = most = sum(size for size, _ in alive.values())
    at = len(events)
    for i in range(len(events) - 1, -1, -1):  # backwards in time: undo each event
        now += _size_change(events[i])
        if now > most:
            most, at = now, i
    held = dict(alive)
    for event in reversed(events[at:]):
        _undo_event(event, held)
    return most, list(held.values()), bool(events)


def _size_change(event: Mapping[str, Any]) -> int:
    size = _int_or_zero(event.get("size"))
    return {"alloc": -size, "free_completed": size}.get(str(event.get("action")), 0)


def _undo_event(event: Mapping[str, Any], held: dict[int, tuple[int, Sequence[Any]]]) -> None:
    address, action = _int_or_zero(event.get("addr")), event.get("action")
    if action == "alloc":
        held.pop(address, None)
    elif action == "free_completed":
        frames = event.get("frames")
        held[address] = (_int_or_zero(event.get("size")), frames if isinstance(frames, list) else ())


def _blocks(content: Mapping[str, Any], device: int) -> Iterator[tuple[int, int, Sequence[Any]]]:
    """Yield address, size and frames of every block that is allocated at the end of the snapshot."""
    for segment in content["segments"]:
        if not isinstance(segment, dict) or _int_or_zero(segment.get("device")) != device:
            continue
        at = _int_or_zero(segment.get("address"))
        blocks = segment.get("blocks")
        for block in blocks if isinstance(blocks, list) else ():
            if not isinstance(block, dict):
                continue
            address, size = _int_or_zero(block.get("address", at)), _int_or_zero(block.get("size"))
            at = address + size
            if block.get("state") in _ALIVE:
                frames = block.get("frames")
                yield address, size, frames if isinstance(frames, list) else ()


def _purpose_of(frames: Sequence[Any]) -> str:
    """Return what the memory is for, from the Python frames that allocated it.

    The backward pass of a GPU has no Python frames. Its memory counts as "others", and so does memory allocated before
    stacks were recorded.
    """
    names = [(str(f.get("filename", "")), str(f.get("name", ""))) for f in frames if isinstance(f, dict)]
    if any("/torch/optim/" in file for file, _ in names):
        return "optimizer"
    if any(name == "_engine_run_backward" for _, name in names):
        return "others"
    if any(file.endswith("/nn/modules/module.py") and name in ("_apply", "convert", "_load_from_state_dict")
           for file, name in names):  # fmt: skip
        return "parameters"
    if any(name == "reset_parameters" for _, name in names):
        return "parameters"
    return "activations" if any(name == "_call_impl" for _, name in names) else "others"


def _innermost_line(frames: Sequence[Any]) -> str:
    """Return the innermost line outside of torch."""
    for frame in frames:
        if isinstance(frame, dict):
            file, line = str(frame.get("filename", "")), _int_or_zero(frame.get("line"))
            if file.endswith(".py") and not any(part in file for part in _INSIDE):
                return f"{file.rpartition('/')[2]}:{line} ({frame.get('name', '')})"
    return ""


def _largest_lines(lines: Counter[str], peak: int) -> Iterator[str]:
    most = [(line, size) for line, size in lines.most_common(_SHOWN + 1) if line][:_SHOWN]
    if most and peak:
        named = ", ".join(f"{line} {size / 2**20:,.1f} MiB" for line, size in most)
        yield f"At the peak, these lines' allocations hold most memory: {named}."


def _notes(content: Mapping[str, Any], device: int, peak: int, complete: bool) -> Iterator[str]:
    reserved = sum(
        _int_or_zero(segment.get("total_size"))
        for segment in content["segments"]
        if isinstance(segment, dict) and _int_or_zero(segment.get("device")) == device
    )
    if reserved > peak:
        yield (
            f"The allocator holds {reserved / 2**20:,.1f} MiB at the snapshot's end, but at most {peak / 2**20:,.1f} "
            "MiB of tensors were alive. The rest is cached or fragmented."
        )
    if not complete:
        yield (
            "The snapshot has no history, so its memory is that at its end, not the peak. To get the peak, record with "
            "torch.cuda.memory._record_memory_history()."
        )
    traces = _traces(content)
    if device < len(traces) and (ran_out := sum(e.get("action") == "oom" for e in traces[device])):
        yield f"Memory ran out {ran_out} {'time' if ran_out == 1 else 'times'} while the snapshot was recorded."


def _int_or_zero(value: Any) -> int:
    return value if isinstance(value, int) else 0
