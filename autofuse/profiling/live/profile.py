"""profile(model, inputs): one training step looked at from every side. It puts the parts together, no more."""

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
from autofuse.profiling.live.passes import ProfilePasses, measured
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
    """Where the time and the memory of one training step go, layer by layer, and which rule would help which layer.

    model_or_step: a model with `inputs` (a tensor, a tuple of positional arguments or a dict of keywords), or a
    function of no arguments that runs one step; its models and optimizers are then found by watching it.
    step(model, inputs): what one step of the model is; by default forward, a loss of all floating outputs, backward,
    gradients cleared. A number that a step returns is taken for its loss.
    optimizers: those whose state is to be counted from the start; others are found when they step.
    warmup, steps, traced: how many steps run untimed, timed, and under the recorder; None records as many as take
    about two seconds, 3 to 20 of them.
    samples, tokens: in one step, where the inputs do not tell.
    places: look for what could be fused, and predict the gain. probe: also time steps with the batch doubled.
    trace: where to write the recorded steps, for Perfetto; gzipped if it ends in .gz.
    timed: seconds of bare steps that were timed already, next to those of another variant, say.
    progress: a bar on stderr, where that is a terminal.

    Time is measured with no instrument on; shares of it come from the recorded steps, FLOPs and memory from steps of
    their own. Parameters, gradients, buffers, modes, random states and the optimizers are put back as they were, but
    for gradients that a bare step drops before it calls its model: nobody can see them by then. Under
    torch.distributed every rank has to call it. Raises TypeError for arguments of another kind, ValueError for fewer
    than one step.
    """
    if min(steps, 1 if traced is None else traced) < 1 or warmup < 0:
        raise ValueError(
            f"A profile needs at least one timed and one recorded step, and a warmup of 0 or more; "
            f"got steps={steps}, traced={traced}, warmup={warmup}."
        )
    workload = workload_of(model_or_step, inputs, step, optimizers, name)
    wishes = ProfilePasses(warmup, steps, traced, places, probe, samples, tokens, tuple(timed or ()))
    with ExitStack() as stack:
        stack.enter_context(preserved_optimizers())
        workload.look(lambda model, call: stack.enter_context(preserve_state([model], list(tensors_in(call)))))
        tell = stack.enter_context(progress_bar(f"autofuse: {workload.name}")) if progress else quietly
        found = measured(workload, wishes, tell)
    if trace is not None and found.save is not None:
        found.save(Path(trace))
    return assemble(found)
