"""Reads the graph breaks that Dynamo recorded, and writes their reasons as sentences.

Dynamo keeps them in two places, both private. If a version of torch lacks one of them, its breaks are missing.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from autofuse.fx.trace.source_lines import SourceLine, is_user_file
from autofuse.results.analysis import GraphBreak, where
from autofuse.torch_private import on_demand

_JUMP = re.compile(r"generic_jump (\w+)")
_EXPLANATION = re.compile(r"Explanation: (.*)")


class BreaksSince:
    """The time from which breaks count, because a reset of Dynamo does not clear all its records."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Counts breaks from now on."""
        self.microseconds = time.time_ns() // 1000


def graph_breaks(files: frozenset[str] | None, since: BreaksSince) -> tuple[GraphBreak, ...]:
    """The graph breaks at lines in `files` (None for all files). Equal breaks are counted together."""
    counts = Counter(_continued_breaks())
    skipped_functions = dict(_skipped_functions(since))
    breaks = [
        GraphBreak(
            reason + skipped_functions.get((place, reason), ""),
            place.file if place else "",
            place.line if place else None,
            n,
        )
        for (place, reason), n in {**dict.fromkeys(skipped_functions, 1), **counts}.items()
        if files is None or place is not None and place.file in files
    ]
    return tuple(sorted(breaks, key=lambda b: (b.file, b.line or 0, b.reason)))


_Break = tuple[SourceLine | None, str]


def _continued_breaks() -> Iterator[_Break]:
    """Yields the breaks after which Dynamo continued with another graph."""
    for broken in getattr(on_demand.dynamo_utils, "graph_break_reasons", ()):
        yield _innermost_user_line(broken.user_stack), reason_sentence(broken.reason)


def _skipped_functions(since: BreaksSince) -> Iterator[tuple[_Break, str]]:
    """Yields the breaks after which Dynamo ran the whole function in Python, with a clause that names the function.

    A break in a loop has this effect.
    """
    for metrics in getattr(on_demand.dynamo_utils, "get_compilation_metrics", tuple)():
        if not _field(metrics, "fail_reason") or (_field(metrics, "start_time_us") or 0) < since.microseconds:
            continue
        file, line = _field(metrics, "fail_user_frame_filename"), _field(metrics, "fail_user_frame_lineno")
        place = SourceLine(file, line) if file and line else None
        function = where(str(_field(metrics, "co_filename") or ""), _field(metrics, "co_firstlineno"))
        yield (
            (place, reason_sentence(metrics.fail_reason)),
            f"; so Python runs all of {_field(metrics, 'co_name')} ({function})",
        )


def _field(metrics: Any, name: str) -> Any:
    return getattr(metrics, name, None)


def _innermost_user_line(stack: Any) -> SourceLine | None:
    """The innermost line of user code on a stack of frame summaries."""
    lines = [
        SourceLine(frame.filename, frame.lineno) for frame in stack if is_user_file(frame.filename) and frame.lineno
    ]
    return lines[-1] if lines else None


def reason_sentence(reason: str) -> str:
    """Dynamo's reason in its own words: the first line and the explanation."""
    if jump := _JUMP.match(reason):
        return f"the branch depends on values at run time ({jump[1]})"
    first = next(iter(reason.strip().splitlines()), "").removeprefix("Unsupported ")
    match = _EXPLANATION.search(reason)
    explanation = match[1].strip().rstrip(".") if match else ""
    return f"{first}: {explanation}" if explanation not in ("", first) else first
