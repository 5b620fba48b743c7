"""Puts layers together: what each module takes by itself becomes what it takes with everything below it.

Below a module is what its name begins: `layers.0.attention` lies in `layers.0`, that in `layers`, and all in "", the
model. Knows names and numbers, and not where they come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autofuse.profiling.trace.layers import LayerTimes
from autofuse.profiling.trace.work import Own, Phase
from autofuse.results.profile import OUTSIDE, Layer, Work

_NOTHING = Work()


def layers(
    own_times: Own,
    own_counts: Own,
    kinds: Mapping[str, str],
    calls: Mapping[str, int],
    step_seconds: float,
    sm_efficiency: Mapping[str, float] | None = None,
) -> tuple[Layer, ...]:
    """Every module in the order of `kinds`, then those that only times or counts know; OUTSIDE last.

    own_times: seconds and operators. own_counts: FLOPs, bytes and ideal seconds; its operators stand where own_times
    has none of that module and phase. kinds: classes by name. calls: how often each is called in a step. step_seconds:
    what shares are of. sm_efficiency: fractions of 1, with what is below.
    """
    own = _joined(own_times, own_counts)
    names = dict.fromkeys([*kinds, *(name for name, _ in own)])
    names.pop(OUTSIDE, None)
    below = {name: dict.fromkeys(_PHASES, _NOTHING) for name in (*names, OUTSIDE)}
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
    return tuple(found)


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
    """A name and those of all that it lies in, up to the model's "". What runs outside lies in nothing."""
    yield name
    while name and name != OUTSIDE:
        name = name.rpartition(".")[0]
        yield name


def _joined(times: Own, counts: Own) -> dict[tuple[str, Phase], Work]:
    joined: dict[tuple[str, Phase], Work] = {}
    for key in dict.fromkeys([*times, *counts]):
        time, count = times.get(key, _NOTHING), counts.get(key, _NOTHING)
        operators = time.operators or count.operators
        joined[key] = Work(time.seconds + count.seconds, count.flops, count.bytes, operators, count.ideal_seconds)
    return joined
