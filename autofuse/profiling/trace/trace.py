"""Reads a trace of torch's profiler: events with times, and what the file says about devices and ranks.

The format is Chrome's trace event format as Kineto writes it, and as torch wrote it before Kineto. Entries that cannot
be read are skipped. A file without a trace is an error.
"""

from __future__ import annotations

import gc
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import Any


class Unreadable(ValueError):
    """A file has no trace. The message says what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event that took time.

    start, duration: nanoseconds, as integers, so that sums are exact.
    category: Kineto's ("cpu_op", "kernel", "user_annotation", "cuda_runtime", "gpu_memcpy", ...).
    process, thread: as in the trace; for a kernel, the device and the stream.
    """

    name: str
    category: str
    start: int
    duration: int
    process: Any = 0
    thread: Any = 0
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The end of the event, in nanoseconds."""
        return self.start + self.duration


@dataclass(frozen=True)
class Trace:
    """All complete events, and facts about the whole trace.

    events: in order of their starts, the outer before the inner.
    devices: Kineto's deviceProperties.
    rank, world: the rank and the number of ranks of a job; None without a job.
    about: what else the file says about itself, as text: versions.
    left_out: how many entries could not be read.
    """

    events: tuple[Event, ...]
    devices: tuple[Mapping[str, Any], ...] = ()
    rank: int | None = None
    world: int | None = None
    name: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    left_out: int = 0

    def of(self, *categories: str) -> list[Event]:
        """Return the events of these categories, in order."""
        return [event for event in self.events if event.category in categories]


_CUT_OFF = "the file ends in the middle. Copy it again, or take the trace again and let the profiler finish writing it."
_NOT_JSON = "it is not JSON ({error}). Pass a file that export_chrome_trace wrote."
# Kineto has written numbers as C++ prints them, which is not JSON.
_BARE = re.compile(rb"(:\s*)-?(?:nan|inf|infinity)(?=\s*[,}\]])", re.IGNORECASE)


def read(path: Path) -> Trace:
    """Read the trace in a file, which may be gzipped.

    Raises:
        Unreadable: The file has no trace.
        OSError: The file cannot be read.
    """
    with garbage_collection_off():
        found = parse_trace(read_json(path), path.name)
    return require_events(found, path)


def require_events(found: Trace, path: Path) -> Trace:
    """Return the trace if it has an event.

    Args:
        found: The trace.
        path: The file that it was read from.

    Raises:
        Unreadable: The trace has no event.
    """
    if not found.events:
        raise Unreadable(
            f"{path} has an empty trace: no event in it has a time. Was the profiler stopped before it started?"
        )
    return found


def read_json(path: Path) -> Any:
    """Read a JSON file, which may be gzipped.

    Raises:
        Unreadable: The file is not JSON.
        OSError: The file cannot be read.
    """
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except EOFError as error:
            raise Unreadable(f"{path} has no complete trace: {_CUT_OFF}") from error
        except (zlib.error, gzip.BadGzipFile) as error:
            raise Unreadable(f"{path} has no trace: it looks gzipped but cannot be unpacked ({error}).") from error
    return _parse(data, path)


def sort_events(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the events in order of their starts, the outer before the inner."""
    return tuple(sorted(events, key=lambda e: (e.start, -e.duration)))


def parse_trace(content: Any, name: str = "") -> Trace:
    """Return the trace of a parsed file.

    Args:
        content: An object with traceEvents, or the array of events itself.
        name: The name of the file, for messages.

    Raises:
        Unreadable: The content has no traceEvents, or not a list of them.
    """
    listed = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise Unreadable(
            f"{name or 'This'} has no trace: it has no traceEvents. Pass a file that export_chrome_trace wrote."
        )
    complete = [e for e in listed if isinstance(e, dict) and e.get("ph") == "X"]
    events = [found for found in map(parse_event, complete) if found is not None]
    whole = content if isinstance(content, dict) else {}
    distributed = whole.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    devices = whole.get("deviceProperties")
    return Trace(
        sort_events(events),
        tuple(d for d in devices if isinstance(d, dict)) if isinstance(devices, list) else (),
        integer(distributed.get("rank")),
        integer(distributed.get("world_size")),
        name,
        {key: str(whole[key]) for key in _ABOUT if isinstance(whole.get(key), (str, int))},
        len(complete) - len(events),
    )


def parse_event(entry: Mapping[str, Any]) -> Event | None:
    """Return a complete ("X") entry of traceEvents, whose times are microseconds; None if it has no time."""
    start, duration = nanoseconds(entry.get("ts")), nanoseconds(entry.get("dur", 0))
    if start is None:
        return None
    process, category, args = (
        _process_or_thread(entry.get("pid", 0)),
        str(entry.get("cat") or "").lower(),
        entry.get("args"),
    )
    return Event(
        str(entry.get("name", "")),
        _PRESENT_NAMES.get(category, category) or _BY_PROCESS.get(str(process), ""),
        start,
        max(0, duration or 0),
        process,
        _process_or_thread(entry.get("tid", 0)),
        args if isinstance(args, dict) else {},
    )


def _process_or_thread(place: Any) -> Any:
    """Return a process or a thread: a number or a text, so that it is hashable."""
    return place if isinstance(place, (int, str)) else str(place)


# Names of categories before about torch 1.12, and their present names.
_PRESENT_NAMES = {
    "operator": "cpu_op", "memcpy": "gpu_memcpy", "memset": "gpu_memset",
    "runtime": "cuda_runtime", "python": "python_function",
}  # fmt: skip
# The profiler before Kineto wrote no categories, but two processes.
_BY_PROCESS = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}
_ABOUT = ("schemaVersion", "cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version",
         "hip_driver_version", "roctracer_version", "baseTimeNanoseconds")  # fmt: skip


def nanoseconds(microseconds: Any) -> int | None:
    """Convert microseconds, a number or text, to nanoseconds exactly; None for anything else.

    A float has 53 bits, and nanoseconds since 1970 need 61. So the integer part and the rest are converted separately.
    """
    if isinstance(microseconds, int):
        return microseconds * 1000
    try:
        if isinstance(microseconds, float):
            whole = int(microseconds)
            return whole * 1000 + round((microseconds - whole) * 1000)
        return int((Decimal(microseconds) * 1000).to_integral_value())
    except (DecimalException, OverflowError, TypeError, ValueError):
        return None


def integer(value: Any) -> int | None:
    """Return a whole number, also from text or from a float; None for anything else."""
    if type(value) is int:
        return value
    number = decimal(value)
    return None if number is None else int(number)


def decimal(value: Any) -> float | None:
    """Return a finite number, also from text; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def _parse(data: bytes, path: Path) -> Any:
    if not data.strip():
        raise Unreadable(f"{path} has no trace: it is empty.")
    try:
        return _load(data)
    except ValueError:
        repaired = _BARE.sub(rb"\1null", data)
    try:
        return _load(repaired)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip()) - 1 or error.msg.startswith("Unterminated")
        problem = _CUT_OFF if cut and data.lstrip()[:1] in (b"{", b"[") else _NOT_JSON.format(error=error)
        raise Unreadable(f"{path} has no {'complete ' if problem is _CUT_OFF else ''}trace: {problem}") from error
    except RecursionError as error:
        raise Unreadable(f"{path} has no trace: it is nested too deeply to be one.") from error


def _load(data: bytes) -> Any:
    """Parse JSON. Names may have invalid UTF-8 and control characters, which JSON forbids; no time depends on them."""
    return json.loads(data.decode("utf-8", errors="replace"), strict=False, parse_float=_number)


_EXACT = 2.0**43  # microseconds up to which a float distinguishes nanoseconds


def _number(text: str) -> float | Decimal:
    """Return a float, or a Decimal for microseconds since 1970, because a float would lose their nanoseconds."""
    value = float(text)
    return value if -_EXACT < value < _EXACT else Decimal(text)


@contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Turn off the garbage collector, which would traverse millions of entries again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
