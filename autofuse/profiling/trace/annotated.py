"""Adds autofuse's tracks to a trace, for Perfetto: phases, layers and rules above what torch recorded.

The format is Chrome's trace event format ("Trace Event Format", Google, 2016), as in the trace itself. The events of
the trace stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autofuse.profiling.trace.event_owners import Owned, owners
from autofuse.profiling.trace.launch_shapes import device_number, stream_number
from autofuse.profiling.trace.owned_time import device_pieces
from autofuse.profiling.trace.phases import device_moments, host_moments
from autofuse.profiling.trace.scope import Scope, scope_of
from autofuse.profiling.trace.trace import Trace
from autofuse.results.profile import OUTSIDE, Layer, Place, Profile

Slice = tuple[int, int, str, dict[str, Any]]  # beginning, end in nanoseconds; name; arguments
_PROCESS = "autofuse"
_SORT_INDEX = -1000  # sorts the tracks above all others


def annotate_trace(content: Any, trace: Trace, profile: Profile) -> dict[str, Any]:
    """Return the parsed trace file `content` with the events of autofuse's tracks added.

    Args:
        content: The parsed trace file: an object with traceEvents, or the list of events. It is not changed.
        trace: The trace that was read from the file.
        profile: The profile of the trace. It holds the seconds of each layer and the rules that apply to it.
    """
    result = dict(content) if isinstance(content, dict) else {}
    events = result.get("traceEvents") if isinstance(content, dict) else content
    process = _unused_process(events or [])
    return result | {"traceEvents": [*(events or []), *_track_events(_tracks(trace, profile), process)]}


def _tracks(trace: Trace, profile: Profile) -> Iterator[tuple[str, list[Slice]]]:
    """Yield the tracks with their slices, from top to bottom. Slices of one track are disjoint or nested."""
    scope = scope_of(trace)
    layers = {layer.fqn: layer for layer in profile.layers}
    owned = owners(trace)
    # Other calls are not the model's: for example, those that measure the cost of recording.
    calls = [one for one in owned if one.is_call and one.owner in layers and one.owner != OUTSIDE]
    yield "phases", _phase_slices(scope)
    threads = list(dict.fromkeys(str(one.event.thread) for one in calls))
    for number, thread in enumerate(threads, 1):
        mine = [one for one in calls if str(one.event.thread) == thread]
        after = f", thread {number}" if len(threads) > 1 else ""
        yield f"rules{after}", [found for one in mine for found in _rule_slices(one, layers)]
        yield f"layers as the host calls them{after}", [_call_slice(one, layers) for one in mine]
    for lane, slices in _device_slices(owned, scope).items():
        yield f"layers on {lane}", slices


def _phase_slices(scope: Scope) -> list[Slice]:
    moments = device_moments(scope)[0] if scope.has_gpu else host_moments(scope)
    return sorted((start, end, phase, {}) for phase, found in moments.items() for start, end in found)


def _call_slice(one: Owned, layers: Mapping[str, Layer]) -> Slice:
    fqn = str(one.owner)
    layer = layers.get(fqn)
    about: dict[str, Any] = {"phase": one.phase}
    if layer is not None:
        about |= {"class": layer.kind, "ms of a step": 1e3 * layer.seconds, "share of the step": layer.share}
        about |= {} if layer.regime == "unknown" else {"limit": layer.regime}
    return one.event.start, one.event.end, fqn or "(the model itself)", about


def _rule_slices(one: Owned, layers: Mapping[str, Layer]) -> Iterator[Slice]:
    """Yield a slice for the rules that apply or are fused in the called module; declined ones are left out."""
    layer = layers.get(str(one.owner))
    places = [place for place in layer.places if place.status != "declined"] if layer else []
    if places:
        name = "; ".join(map(_rule_text, places))
        yield one.event.start, one.event.end, name, {"layer": str(one.owner)}


def _rule_text(place: Place) -> str:
    saving = place.predicted_saving
    gain = f", predicted to save {1e3 * saving:.3g} ms a step" if saving and place.status == "applies" else ""
    return f"{place.rule} {place.status}{gain}"


def _device_slices(owned: list[Owned], scope: Scope) -> dict[str, list[Slice]]:
    """Return slices by stream. Consecutive kernels of one layer and one phase form one slice."""
    lanes: dict[str, list[Slice]] = {}
    if not scope.has_gpu:
        return lanes
    for piece in device_pieces(owned, scope):
        if piece.kernel is None or piece.owner is None:
            continue
        kernel, name = piece.kernel, piece.owner or "(the model itself)"
        lane = lanes.setdefault(f"GPU {device_number(kernel)}, stream {stream_number(kernel)}", [])
        if lane and lane[-1][2] == name and lane[-1][3]["phase"] == piece.phase:
            start, end, _, about = lane[-1]
            lane[-1] = (start, max(end, kernel.end), name, {**about, "kernels": about["kernels"] + 1})
        else:
            # Work on one stream runs in order, but a profiler may write an end that is later than the next start.
            start = max(kernel.start, lane[-1][1]) if lane else kernel.start
            lane.append((start, max(start, kernel.end), name, {"phase": piece.phase, "kernels": 1}))
    return dict(sorted(lanes.items()))


def _track_events(tracks: Iterable[tuple[str, list[Slice]]], process: int) -> Iterator[dict[str, Any]]:
    yield _metadata_event("process_name", process, 0, {"name": _PROCESS})
    yield _metadata_event("process_labels", process, 0, {"labels": "phases, layers and rules"})
    yield _metadata_event("process_sort_index", process, 0, {"sort_index": _SORT_INDEX})
    for thread, (name, slices) in enumerate(((n, s) for n, s in tracks if s), 1):
        yield _metadata_event("thread_name", process, thread, {"name": name})
        yield _metadata_event("thread_sort_index", process, thread, {"sort_index": thread})
        for start, end, label, about in slices:
            begins = start / 1000  # microseconds; rounding keeps the order, so nested slices stay nested
            yield {
                "ph": "X", "cat": _PROCESS, "name": label, "pid": process, "tid": thread, "ts": begins,
                "dur": end / 1000 - begins, "args": about,
            }  # fmt: skip


def _metadata_event(name: str, process: int, thread: int, about: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": about}


def _unused_process(events: Iterable[Any]) -> int:
    used = {e.get("pid") for e in events if isinstance(e, dict)}
    return max((pid for pid in used if isinstance(pid, int)), default=0) + 1
