"""The double-the-batch probe, layer by layer: where twice the samples take no longer, overhead is the limit.

Steps with the batch and with twice the batch are recorded in pairs of random order, so that what slows the machine
down slows both. Knows steps and how layers' times are read; what they mean is said elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import torch

from autofuse.measure.statistics import estimate
from autofuse.measure.step import Inputs
from autofuse.measure.timing import seconds_of
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.probe import doubled
from autofuse.profiling.live.recording import Recording
from autofuse.profiling.trace.layers import step_by_step
from autofuse.results.comparison import Estimate

_PAIRS = (6, 12)
_LEAST = 20e-6  # seconds: of shorter layers a recording tells nothing


def grown(
    run: Callable[[Inputs], object], inputs: Inputs, names: ModuleNames, device: torch.device, *,
    seconds: float = 6.0, seed: int = 0,
) -> Mapping[str, Estimate]:  # fmt: skip
    """By module, its own time with twice the batch / its own time, forward and backward; of the model, "", all of it.

    `run(inputs)` is a step, of which as many pairs as fit into about `seconds` are recorded, 6 to 12. A module that
    is not in every step, or takes next to nothing, is left out. Raises probe.NotApplicable where no batch is known.
    """
    both, order = (inputs, doubled(inputs)), random.Random(seed)
    one = seconds_of(lambda: run(inputs), device)
    pairs = min(_PAIRS[1], max(_PAIRS[0], int(seconds / (3 * one))))
    turns = [turn for _ in range(pairs) for turn in order.sample((0, 1), 2)]
    with Recording(names, device) as recording:
        for given in both:
            run(given)  # recorded, and not looked at
        for turn in turns:
            with recording.step():
                run(both[turn])
    steps = step_by_step(recording.trace)
    if len(steps) != len(turns):  # a step in which nothing ran is none
        return {}
    once, twice = ([step for step, turn in zip(steps, turns, strict=True) if turn is which] for which in (0, 1))
    return {
        name: estimate([step[name] for step in twice], [step[name] for step in once], seed=seed)
        for name in once[0]
        if all(step.get(name, 0.0) > _LEAST for step in steps)
    }
