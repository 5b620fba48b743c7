"""A trace of torch's profiler as data: events with times, and what it says of devices and ranks.

Knows the file format (Chrome's trace event format as Kineto writes it), and nothing of what the events mean.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

    devices: Kineto's deviceProperties. rank, world: of a job, None where it was none.
    """

    events: tuple[Event, ...]
    devices: tuple[Mapping[str, Any], ...] = ()
    rank: int | None = None
    world: int | None = None
    name: str = ""

    def of(self, *categories: str) -> list[Event]:
        """The events of these categories, in order."""
        return [event for event in self.events if event.category in categories]


def read(path: Path) -> Trace:
    """The trace in a file, which may be gzipped. Raises Unreadable where there is none in it, OSError as open does."""
    data = path.read_bytes()
    try:
        content = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise Unreadable(
            f"{path} holds no trace: it is not JSON ({error}). Pass what export_chrome_trace wrote."
        ) from error
    return of(content, path.name)


def of(content: Any, name: str = "") -> Trace:
    """The trace that a parsed file is: an object with traceEvents, or the bare array of them."""
    listed = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise Unreadable(f"{name or 'This'} holds no trace: there are no traceEvents in it.")
    events = [event(e) for e in listed if isinstance(e, dict) and e.get("ph") == "X" and "ts" in e]
    whole = content if isinstance(content, dict) else {}
    distributed = whole.get("distributedInfo") or {}
    return Trace(
        tuple(sorted(events, key=lambda e: (e.start, -e.duration))),
        tuple(whole.get("deviceProperties") or ()),
        distributed.get("rank"),
        distributed.get("world_size"),
        name,
    )


def event(entry: Mapping[str, Any]) -> Event:
    """One complete ("X") entry of traceEvents, whose times are microseconds."""
    return Event(
        str(entry.get("name", "")),
        str(entry.get("cat", "")).lower(),
        round(float(entry["ts"]) * 1000),
        max(0, round(float(entry.get("dur") or 0) * 1000)),
        entry.get("pid", 0),
        entry.get("tid", 0),
        entry.get("args") or {},
    )


def within(events: Sequence[Event], start: int, end: int) -> list[Event]:
    """The events that begin in [start, end)."""
    return [e for e in events if start <= e.start < end]
