"""The double-the-batch probe, by layer: if twice the samples take no longer, overhead limits the layer.

Steps with the batch and with twice the batch are recorded in pairs of random order, so that a slow machine slows both
down.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import torch

from autofuse.measure.statistics import estimate
from autofuse.measure.step import Inputs
from autofuse.measure.timing import seconds_of
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.probe import double_batch
from autofuse.profiling.live.recording import Recording
from autofuse.profiling.trace.layers import step_by_step
from autofuse.results.comparison import Estimate

_PAIRS = (6, 12)  # fewest and most
_LEAST = 20e-6  # seconds: a recording is not precise enough for shorter layers


def growth_by_layer(
    run: Callable[[Inputs], object], inputs: Inputs, names: ModuleNames, device: torch.device, *,
    seconds: float = 6.0, seed: int = 0,
) -> Mapping[str, Estimate]:  # fmt: skip
    """Return, by module, its own time with twice the batch / its own time, both phases; for the model, "", all of it.

    Modules that are not in every step, or take almost no time, are left out.

    Args:
        run: Runs a step with the given inputs.
        inputs: The inputs of a step.
        names: The modules' names.
        device: The device of the step.
        seconds: About how long to record; at least 6 and at most 12 pairs.
        seed: Of the random order.

    Raises:
        probe.NotApplicable: The batch is unknown.
    """
    both, order = (inputs, double_batch(inputs)), random.Random(seed)
    one = seconds_of(lambda: run(inputs), device)
    pairs = min(_PAIRS[1], max(_PAIRS[0], int(seconds / (3 * one))))
    turns = [turn for _ in range(pairs) for turn in order.sample((0, 1), 2)]
    with Recording(names, device) as recording:
        for given in both:
            run(given)  # recorded but not used
        for turn in turns:
            with recording.step():
                run(both[turn])
    steps = step_by_step(recording.trace)
    if len(steps) != len(turns):  # steps in which nothing ran are missing
        return {}
    once, twice = ([step for step, turn in zip(steps, turns, strict=True) if turn is which] for which in (0, 1))
    return {
        name: estimate([step[name] for step in twice], [step[name] for step in once], seed=seed)
        for name in once[0]
        if all(step.get(name, 0.0) > _LEAST for step in steps)
    }
