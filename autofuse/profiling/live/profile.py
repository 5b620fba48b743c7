"""profile(model, inputs): profiles one training step of a model with all instruments."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from autofuse.display.progress import progress_bar, quietly
from autofuse.measure.preserved_state import preserve_state
from autofuse.measure.step import Inputs, Step
from autofuse.profiling.live.assemble import assemble
from autofuse.profiling.live.optimizers import preserved_optimizers
from autofuse.profiling.live.passes import ProfilePasses, run_passes
from autofuse.profiling.live.workload import Subject, workload_of
from autofuse.results.profile import Profile
from autofuse.torch_private.nested import tensors_in


def profile(
    model_or_step: Subject,
    inputs: Inputs | None = None,
    *,
    step: Step | None = None,
    optimizers: Sequence[torch.optim.Optimizer] = (),
    warmup: int = 3,
    steps: int = 20,
    traced: int | None = None,
    samples: int | None = None,
    tokens: int | None = None,
    places: bool = True,
    probe: bool = True,
    trace: str | Path | None = None,
    timed: Sequence[float] | None = None,
    name: str = "",
    progress: bool = True,
) -> Profile:
    """Measure where the time and memory of one training step go, by layer, and which rule would help which layer.

    Time is measured with no instrument on. Shares of it come from recorded steps, FLOPs and memory from separate steps.
    Parameters, gradients, buffers, modes, random states and optimizers are restored afterwards, except gradients that a
    bare step drops before it calls its model, because nothing can see them then. Under torch.distributed every rank
    must call it.

    Args:
        model_or_step: A model with `inputs`, or a function without arguments that runs one step. In the second case,
            the models and optimizers are found by watching a step.
        inputs: A tensor, a tuple of positional arguments, or a dict of keyword arguments.
        step: Runs one step as step(model, inputs). The default: forward, a loss of all floating outputs, backward,
            clearing gradients. If it returns a number, that is the step's loss.
        optimizers: Those whose state counts from the start. Others are found when they step.
        warmup: How many steps run untimed.
        steps: How many steps are timed.
        traced: How many steps are recorded; None for as many as take about two seconds, 3 to 20.
        samples: Samples in one step, if the inputs do not show them.
        tokens: Tokens in one step, if the inputs do not show them.
        places: Whether to look for what could be fused, and to predict the gain.
        probe: Whether to time steps with the batch doubled, too.
        trace: Where to write the recorded steps, for Perfetto; gzipped if the name ends in .gz.
        timed: Seconds of bare steps that were timed already, for example interleaved with another variant.
        name: The profile's name; by default that of the model's class or of the step.
        progress: Whether to show a progress bar on stderr, if that is a terminal.

    Returns:
        The profile.

    Raises:
        TypeError: The arguments are neither a model with inputs nor a step.
        ValueError: `steps` or `traced` is less than 1, or `warmup` is negative.
    """
    if min(steps, 1 if traced is None else traced) < 1 or warmup < 0:
        raise ValueError(
            f"A profile needs at least one timed and one recorded step, and a warmup of 0 or more; "
            f"got steps={steps}, traced={traced}, warmup={warmup}."
        )
    workload = workload_of(model_or_step, inputs, step, optimizers, name)
    settings = ProfilePasses(warmup, steps, traced, places, probe, samples, tokens, tuple(timed or ()))
    with ExitStack() as stack:
        stack.enter_context(preserved_optimizers())
        workload.look(lambda model, call: stack.enter_context(preserve_state([model], list(tensors_in(call)))))
        show_progress = stack.enter_context(progress_bar(f"autofuse: {workload.name}")) if progress else quietly
        found = run_passes(workload, settings, show_progress)
    if trace is not None and found.save is not None:
        found.save(Path(trace))
    return assemble(found)
