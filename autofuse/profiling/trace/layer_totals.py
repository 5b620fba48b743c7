"""Puts layers together: what each module takes by itself becomes what it takes with everything below it.

Below a module is what its name begins: `layers.0.attention` lies in `layers.0`, that in `layers`, and all in "", the
model. Knows names and numbers, and not where they come from.
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
    """Every module in the order of `kinds`, then those that only times or counts know; last OUTSIDE, COMMUNICATION
    where there is any, and OPTIMIZER where there is one.

    own_times: seconds and operators. own_counts: FLOPs, bytes and ideal seconds; its operators stand where own_times
    has none of that module and phase. kinds: classes by name. calls: how often each is called in a step. step_seconds:
    what shares are of. sm_efficiency: fractions of 1, with what is below. intervals: share_intervals_of the times.
    """
    own = _joined(own_times, own_counts)
    names = dict.fromkeys([*kinds, *(name for name, _ in own)])
    messages = [COMMUNICATION] if COMMUNICATION in names else []
    for name in (OUTSIDE, OPTIMIZER, COMMUNICATION):
        names.pop(name, None)
    optimizer = own.pop((OPTIMIZER, "forward"), None)
    below = {name: dict.fromkeys(_PHASES, _NOTHING) for name in (*names, OUTSIDE, *messages)}
    for (name, phase), work in own.items():
        for above in _upwards(name):
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
        made = Layer(OPTIMIZER, "", 0, _NOTHING, _NOTHING, _NOTHING, _NOTHING, share=share, optimizer=optimizer)
        found.append(replace(made, sm_efficiency=(sm_efficiency or {}).get(OPTIMIZER)))
    return tuple(replace(layer, share_interval=_around(layer, intervals or {})) for layer in found)


def share_intervals_of(times: LayerTimes) -> dict[str, Interval]:
    """By module, with what is below: the 95 % interval of its share / its share. Empty where one step was recorded."""
    whole = times.step_lengths
    below: dict[str, list[float]] = {}
    for name, seconds in times.by_step.items():
        for above in _upwards(name):
            mine = below.setdefault(above, [0.0] * len(whole))
            below[above] = [x + y for x, y in zip(mine, seconds, strict=True)]
    found = {}
    for name, seconds in below.items():
        interval, total = ratio_interval(seconds, whole), sum(seconds)
        if interval is not None and total > 0:
            share = total / sum(whole)
            found[name] = Interval(interval.low / share, interval.high / share)
    return found


def _around(layer: Layer, intervals: Mapping[str, Interval]) -> Interval | None:
    relative = intervals.get(layer.fqn)
    return None if relative is None else Interval(relative.low * layer.share, relative.high * layer.share)


def sm_efficiency_of(times: LayerTimes) -> dict[str, float]:
    """By module, with what is below: the sum over its kernels of min(blocks / SMs, 1) x duration / their durations."""
    seconds: dict[str, float] = {}
    occupied: dict[str, float] = {}
    for name, taken in times.kernel_seconds.items():
        for above in _upwards(name):
            seconds[above] = seconds.get(above, 0.0) + taken
            occupied[above] = occupied.get(above, 0.0) + times.sm_seconds[name]
    return {name: occupied[name] / taken for name, taken in seconds.items() if taken > 0}


_PHASES: tuple[Phase, Phase] = ("forward", "backward")


def _upwards(name: str) -> Iterator[str]:
    """A name and those of all that it lies in, up to the model's "". What runs in no module lies in nothing."""
    yield name
    while name and name not in (OUTSIDE, OPTIMIZER, COMMUNICATION):
        name = name.rpartition(".")[0]
        yield name


def _joined(times: Own, counts: Own) -> dict[tuple[str, Phase], Work]:
    joined: dict[tuple[str, Phase], Work] = {}
    for key in dict.fromkeys([*times, *counts]):
        time, count = times.get(key, _NOTHING), counts.get(key, _NOTHING)
        operators = time.operators or count.operators
        joined[key] = Work(time.seconds + count.seconds, count.flops, count.bytes, operators, count.ideal_seconds)
    return joined
