"""A trace of torch's profiler as data: events with times, and what it says of devices and ranks.

Knows the file format (Chrome's trace event format as Kineto writes it, and what torch wrote before Kineto), and
nothing of what the events mean. Entries that cannot be read are passed over; a file that holds no trace is an error.
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
    """A file is no trace; the message says what stands in the way and what to do."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that took time. start, duration: nanoseconds, as integers, so that sums are exact.

    category: Kineto's ("cpu_op", "kernel", "user_annotation", "cuda_runtime", "gpu_memcpy", ...). process, thread:
    as the trace names them; of a kernel, the device and the stream.
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
        """Nanoseconds."""
        return self.start + self.duration


@dataclass(frozen=True)
class Trace:
    """All complete events by the order of their beginnings, the outer before the inner; and what belongs to the whole.

    devices: Kineto's deviceProperties. rank, world: of a job, None where it was none. about: what else the file says
    of itself, as text: versions. left_out: how many entries could not be read.
    """

    events: tuple[Event, ...]
    devices: tuple[Mapping[str, Any], ...] = ()
    rank: int | None = None
    world: int | None = None
    name: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    left_out: int = 0

    def of(self, *categories: str) -> list[Event]:
        """The events of these categories, in order."""
        return [event for event in self.events if event.category in categories]


_CUT_OFF = "the file ends in the middle. Copy it again, or take the trace again and let the profiler finish writing it."
_NOT_JSON = "it is not JSON ({error}). Pass what export_chrome_trace wrote."
# Kineto has written numbers as C++ prints them, which is no JSON.
_BARE = re.compile(rb"(:\s*)-?(?:nan|inf|infinity)(?=\s*[,}\]])", re.IGNORECASE)


def read(path: Path) -> Trace:
    """The trace in a file, which may be gzipped. Raises Unreadable where there is none in it, OSError as open does."""
    with at_rest():
        found = of(content_of(path), path.name)
    return something_of(found, path)


def something_of(found: Trace, path: Path) -> Trace:
    """The trace, which was read from that file. Raises Unreadable where no event is in it."""
    if not found.events:
        raise Unreadable(
            f"{path} holds a trace of nothing: no event in it has a time. Was the profiler stopped before it began?"
        )
    return found


def content_of(path: Path) -> Any:
    """What is in a file of JSON, which may be gzipped. Raises Unreadable where it is none, OSError as open does."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except EOFError as error:
            raise Unreadable(f"{path} holds no whole trace: {_CUT_OFF}") from error
        except (zlib.error, gzip.BadGzipFile) as error:
            raise Unreadable(f"{path} holds no trace: it looks gzipped and cannot be unpacked ({error}).") from error
    return _parsed(data, path)


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """By their beginnings, the outer before the inner."""
    return tuple(sorted(events, key=lambda e: (e.start, -e.duration)))


def of(content: Any, name: str = "") -> Trace:
    """The trace that a parsed file is: an object with traceEvents, or the bare array of them."""
    listed = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise Unreadable(
            f"{name or 'This'} holds no trace: there are no traceEvents in it. Pass what export_chrome_trace wrote."
        )
    complete = [e for e in listed if isinstance(e, dict) and e.get("ph") == "X"]
    events = [found for found in map(event, complete) if found is not None]
    whole = content if isinstance(content, dict) else {}
    distributed = whole.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    devices = whole.get("deviceProperties")
    return Trace(
        in_order(events),
        tuple(d for d in devices if isinstance(d, dict)) if isinstance(devices, list) else (),
        integer(distributed.get("rank")),
        integer(distributed.get("world_size")),
        name,
        {key: str(whole[key]) for key in _TOLD if isinstance(whole.get(key), (str, int))},
        len(complete) - len(events),
    )


def event(entry: Mapping[str, Any]) -> Event | None:
    """One complete ("X") entry of traceEvents, whose times are microseconds; None where it says no time."""
    start, duration = nanoseconds(entry.get("ts")), nanoseconds(entry.get("dur", 0))
    if start is None:
        return None
    process, category, args = _named(entry.get("pid", 0)), str(entry.get("cat") or "").lower(), entry.get("args")
    return Event(
        str(entry.get("name", "")),
        _SAME.get(category, category) or _BY_PROCESS.get(str(process), ""),
        start,
        max(0, duration or 0),
        process,
        _named(entry.get("tid", 0)),
        args if isinstance(args, dict) else {},
    )


def _named(place: Any) -> Any:
    """A process or a thread: a number or a text, which can be looked up."""
    return place if isinstance(place, (int, str)) else str(place)


# What categories were called before torch 1.12 or so, by what they are called now.
_SAME = {
    "operator": "cpu_op", "memcpy": "gpu_memcpy", "memset": "gpu_memset",
    "runtime": "cuda_runtime", "python": "python_function",
}  # fmt: skip
# The profiler before Kineto gave no categories, but two processes.
_BY_PROCESS = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}
_TOLD = ("schemaVersion", "cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version",
         "hip_driver_version", "roctracer_version", "baseTimeNanoseconds")  # fmt: skip


def nanoseconds(microseconds: Any) -> int | None:
    """Exactly so many microseconds, given as a number or as text; None where it is neither.

    A float has 53 bits, and nanoseconds since 1970 take 61: so the whole and the rest go separate ways.
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
    """A whole number, also where it is written as text or with a point; None where there is none."""
    if type(value) is int:
        return value
    number = decimal(value)
    return None if number is None else int(number)


def decimal(value: Any) -> float | None:
    """A finite number, also where it is written as text; None where there is none."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def _parsed(data: bytes, path: Path) -> Any:
    if not data.strip():
        raise Unreadable(f"{path} holds no trace: it is empty.")
    try:
        return _loaded(data)
    except ValueError:
        repaired = _BARE.sub(rb"\1null", data)
    try:
        return _loaded(repaired)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip()) - 1 or error.msg.startswith("Unterminated")
        said = _CUT_OFF if cut and data.lstrip()[:1] in (b"{", b"[") else _NOT_JSON.format(error=error)
        raise Unreadable(f"{path} holds no {'whole ' if said is _CUT_OFF else ''}trace: {said}") from error
    except RecursionError as error:
        raise Unreadable(f"{path} holds no trace: it is nested too deeply to be one.") from error


def _loaded(data: bytes) -> Any:
    """Names may hold bytes that are no UTF-8 and control characters that JSON forbids; nobody's times hang on them."""
    return json.loads(data.decode("utf-8", errors="replace"), strict=False, parse_float=_number)


_EXACT = 2.0**43  # microseconds up to which a float tells nanoseconds apart


def _number(text: str) -> float | Decimal:
    """A float, but for a time in microseconds since 1970, which would lose its nanoseconds."""
    value = float(text)
    return value if -_EXACT < value < _EXACT else Decimal(text)


@contextmanager
def at_rest() -> Iterator[None]:
    """Without the garbage collector, which would look through millions of entries again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
