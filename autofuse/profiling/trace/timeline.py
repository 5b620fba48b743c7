"""Builds the timeline of one step, coarse enough to draw: what happens when.

Live profiles use `spans_of(scope_of(trace))`, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from autofuse.ir.operator_categories import category_of
from autofuse.profiling.trace.categories import kernel_category, short_name
from autofuse.profiling.trace.intervals import Interval, intersection
from autofuse.profiling.trace.launch_shapes import device_number, stream_number
from autofuse.profiling.trace.phases import device_moments, host_moments
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event
from autofuse.results.profile_parts import Span

FINEST = 1 / 500  # fraction of the step: closer bars of one kind are merged, and shorter bars are left out


Entry = tuple[int, int, str, str]  # beginning, end, kind, name


def spans_of(scope: Scope) -> tuple[Span, ...]:
    """Return the bars of the step of median length: its phases, then what each stream (on a CPU, each thread) runs.

    Neighbouring bars of one kind are merged, and take the name of the longest.
    """
    window = sorted(scope.steps.windows, key=lambda w: w[1] - w[0])[len(scope.steps.windows) // 2]
    if window[0] == window[1]:
        return ()
    moments = device_moments(scope)[0] if scope.has_gpu else host_moments(scope)
    phases: list[Entry] = [
        (start, end, phase, phase) for phase, found in moments.items() for start, end in intersection(found, [window])
    ]
    spans = _bars_of_lane("phases", phases, window)
    for lane, entries in _entries_by_lane(scope, window).items():
        spans += _bars_of_lane(lane, entries, window)
    return tuple(spans)


def _entries_by_lane(scope: Scope, window: Interval) -> dict[str, list[Entry]]:
    """Return what runs in the window, by stream or by thread."""
    lanes: dict[str, list[Entry]] = {}
    for lane, event, kind, name in _lanes_of_gpus(scope) if scope.has_gpu else _lanes_of_threads(scope):
        start, end = max(event.start, window[0]), min(event.end, window[1])
        if start < end:
            lanes.setdefault(lane, []).append((start, end, kind, name))
    return dict(sorted(lanes.items(), key=lambda lane: -sum(end - start for start, end, *_ in lane[1])))


def _lanes_of_gpus(scope: Scope) -> Iterable[tuple[str, Event, str, str]]:
    several = len(scope.by_device) > 1
    for work in scope.work:
        device = f"GPU {device_number(work)} " if several else "GPU "
        yield f"{device}stream {stream_number(work)}", work, kernel_category(work, scope), short_name(work.name)


def _lanes_of_threads(scope: Scope) -> Iterable[tuple[str, Event, str, str]]:
    names: dict[str, str] = {}
    for event in scope.trace.of("cpu_op"):
        if category := category_of(event.name):
            thread = names.setdefault(str(event.thread), f"thread {len(names) + 1}")
            yield thread, event, category, event.name


def _bars_of_lane(lane: str, entries: list[Entry], window: Interval) -> list[Span]:
    """Return the bars of a lane, in order."""
    finest = (window[1] - window[0]) * FINEST
    groups: list[list[Entry]] = []
    end = 0
    for entry in sorted(entries):
        if groups and entry[2] == groups[-1][0][2] and entry[0] - end <= finest:
            groups[-1].append(entry)
            end = max(end, entry[1])
        else:
            groups.append([entry])
            end = entry[1]
    bars = []
    for group in groups:
        start, end = group[0][0], max(entry[1] for entry in group)
        if end - start >= finest:
            longest = max(group, key=lambda entry: entry[1] - entry[0])
            bars.append(Span(lane, longest[3], (start - window[0]) * 1e-9, (end - start) * 1e-9, longest[2]))
    return bars
