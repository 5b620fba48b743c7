"""Where Dynamo left the graph, and why: its own records, put into sentences.

Knows the two places where Dynamo keeps them, which are not public: what a version of torch lacks is left out.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from autofuse.fx.trace.source_lines import SourceLine, is_users
from autofuse.results.analysis import GraphBreak, where
from autofuse.torch_private import on_demand

_JUMP = re.compile(r"generic_jump (\w+)")
_EXPLANATION = re.compile(r"Explanation: (.*)")


class BreaksSince:
    """The moment from which breaks count: Dynamo keeps some of its records past a reset."""

    def __init__(self) -> None:
        self.now()

    def now(self) -> None:
        """Let them count from here on."""
        self.microseconds = time.time_ns() // 1000


def graph_breaks(files: frozenset[str] | None, since: BreaksSince) -> tuple[GraphBreak, ...]:
    """Every graph break whose line stands in `files` (None are all), equal ones as one."""
    counts = Counter(_broken())
    left = dict(_given_up(since))
    found = [
        GraphBreak(
            reason + left.get((place, reason), ""), place.file if place else "", place.line if place else None, n
        )
        for (place, reason), n in {**dict.fromkeys(left, 1), **counts}.items()
        if files is None or place is not None and place.file in files
    ]
    return tuple(sorted(found, key=lambda b: (b.file, b.line or 0, b.reason)))


_Break = tuple[SourceLine | None, str]


def _broken() -> Iterator[_Break]:
    """The breaks behind which Dynamo went on."""
    for found in getattr(on_demand.dynamo_utils, "graph_break_reasons", ()):
        yield _innermost(found.user_stack), sentence(found.reason)


def _given_up(since: BreaksSince) -> Iterator[tuple[_Break, str]]:
    """The breaks that made Dynamo leave a whole function to Python, as one in a loop does, and which function."""
    for metrics in getattr(on_demand.dynamo_utils, "get_compilation_metrics", tuple)():
        if not _of(metrics, "fail_reason") or (_of(metrics, "start_time_us") or 0) < since.microseconds:
            continue
        file, line = _of(metrics, "fail_user_frame_filename"), _of(metrics, "fail_user_frame_lineno")
        place = SourceLine(file, line) if file and line else None
        whole = where(str(_of(metrics, "co_filename") or ""), _of(metrics, "co_firstlineno"))
        yield (
            (place, sentence(metrics.fail_reason)),
            f"; so all of {_of(metrics, 'co_name')} ({whole}) is left to Python",
        )


def _of(metrics: Any, name: str) -> Any:
    return getattr(metrics, name, None)


def _innermost(stack: Any) -> SourceLine | None:
    """The innermost line of the user's on a stack of frame summaries."""
    lines = [SourceLine(frame.filename, frame.lineno) for frame in stack if is_users(frame.filename) and frame.lineno]
    return lines[-1] if lines else None


def sentence(reason: str) -> str:
    """What Dynamo says, in its own words: the first line, and the explanation behind it."""
    if jump := _JUMP.match(reason):
        return f"which way the code goes is only known when it runs ({jump[1]})"
    first = next(iter(reason.strip().splitlines()), "").removeprefix("Unsupported ")
    found = _EXPLANATION.search(reason)
    explained = found[1].strip().rstrip(".") if found else ""
    return f"{first}: {explained}" if explained not in ("", first) else first
