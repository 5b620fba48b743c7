"""Adds up layers: from what each module takes by itself to what it takes together with the modules below it.

The modules below a module are those whose names begin with its name: `layers.0.attention` is below `layers.0`, that is
below `layers`, and all are below "", the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from autofuse.profiling.trace.layers import LayerTimes
from autofuse.profiling.trace.work import Own, Phase
from autofuse.results.comparison import Interval
from autofuse.results.profile import COMMUNICATION, OPTIMIZER, OUTSIDE, Layer, Work
from autofuse.results.ratio_interval import ratio_interval

_NOTHING = Work()


def layers(
    own_times: Own,
    own_counts: Own,
    kinds: Mapping[str, str],
    calls: Mapping[str, int],
    step_seconds: float,
    sm_efficiency: Mapping[str, float] | None = None,
    intervals: Mapping[str, Interval] | None = None,
) -> tuple[Layer, ...]:
    """Return every module in the order of `kinds`, then modules that only times or counts contain, then OUTSIDE.

    COMMUNICATION and OPTIMIZER come last, if there are any.

    Args:
        own_times: Seconds and operators.
        own_counts: FLOPs, bytes and ideal seconds. Its operators are used where own_times has none.
        kinds: Classes by module name.
        calls: How often each module is called in a step.
        step_seconds: The seconds of the whole step, for shares.
        sm_efficiency: Fractions of 1, by module, including the modules below it.
        intervals: The result of share_intervals_of.
    """
    own = _merge(own_times, own_counts)
    names = dict.fromkeys([*kinds, *(name for name, _ in own)])
    messages = [COMMUNICATION] if COMMUNICATION in names else []
    for name in (OUTSIDE, OPTIMIZER, COMMUNICATION):
        names.pop(name, None)
    optimizer = own.pop((OPTIMIZER, "forward"), None)
    below = {name: dict.fromkeys(_PHASES, _NOTHING) for name in (*names, OUTSIDE, *messages)}
    for (name, phase), work in own.items():
        for above in _with_ancestors(name):
            if above in below:
                below[above][phase] += work
    found = []
    for name, works in below.items():
        forward, backward = works["forward"], works["backward"]
        seconds = forward.seconds + backward.seconds
        found.append(
            Layer(
                name,
                kinds.get(name, ""),
                calls.get(name, 0),
                forward,
                backward,
                own.get((name, "forward"), _NOTHING),
                own.get((name, "backward"), _NOTHING),
                share=seconds / step_seconds if step_seconds > 0 else 0.0,
                sm_efficiency=(sm_efficiency or {}).get(name),
            )
        )
    if optimizer is not None:
        share = optimizer.seconds / step_seconds if step_seconds > 0 else 0.0
        layer = Layer(OPTIMIZER, "", 0, _NOTHING, _NOTHING, _NOTHING, _NOTHING, share=share, optimizer=optimizer)
        found.append(replace(layer, sm_efficiency=(sm_efficiency or {}).get(OPTIMIZER)))
    return tuple(replace(layer, share_interval=_share_interval(layer, intervals or {})) for layer in found)


def share_intervals_of(times: LayerTimes) -> dict[str, Interval]:
    """Return, by module and including the modules below it, the 95 % interval of its share / its share.

    The result is empty if only one step was recorded.
    """
    step_lengths = times.step_lengths
    below: dict[str, list[float]] = {}
    for name, seconds in times.by_step.items():
        for above in _with_ancestors(name):
            sums = below.setdefault(above, [0.0] * len(step_lengths))
            below[above] = [x + y for x, y in zip(sums, seconds, strict=True)]
    found = {}
    for name, seconds in below.items():
        interval, total = ratio_interval(seconds, step_lengths), sum(seconds)
        if interval is not None and total > 0:
            share = total / sum(step_lengths)
            found[name] = Interval(interval.low / share, interval.high / share)
    return found


def _share_interval(layer: Layer, intervals: Mapping[str, Interval]) -> Interval | None:
    relative = intervals.get(layer.fqn)
    return None if relative is None else Interval(relative.low * layer.share, relative.high * layer.share)


def sm_efficiency_of(times: LayerTimes) -> dict[str, float]:
    """Return the mean of min(blocks / SMs, 1) over the kernels of each module and those below it, weighted by time."""
    seconds: dict[str, float] = {}
    occupied: dict[str, float] = {}
    for name, taken in times.kernel_seconds.items():
        for above in _with_ancestors(name):
            seconds[above] = seconds.get(above, 0.0) + taken
            occupied[above] = occupied.get(above, 0.0) + times.sm_seconds[name]
    return {name: occupied[name] / taken for name, taken in seconds.items() if taken > 0}


_PHASES: tuple[Phase, Phase] = ("forward", "backward")


def _with_ancestors(name: str) -> Iterator[str]:
    """Yield a name and the names of all modules that contain it, up to the model's ""."""
    yield name
    while name and name not in (OUTSIDE, OPTIMIZER, COMMUNICATION):
        name = name.rpartition(".")[0]
        yield name


def _merge(times: Own, counts: Own) -> dict[tuple[str, Phase], Work]:
    joined: dict[tuple[str, Phase], Work] = {}
    for key in dict.fromkeys([*times, *counts]):
        time, count = times.get(key, _NOTHING), counts.get(key, _NOTHING)
        operators = time.operators or count.operators
        joined[key] = Work(time.seconds + count.seconds, count.flops, count.bytes, operators, count.ideal_seconds)
    return joined
