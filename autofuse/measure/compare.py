"""compare(before, after, inputs): time, memory and operators of two variants. It puts the parts together, no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from autofuse.measure.environment import environment
from autofuse.measure.memory import Peak, peak_of
from autofuse.measure.operators import operators_of
from autofuse.measure.state import preserved
from autofuse.measure.statistics import control, estimate, judge
from autofuse.measure.step import Inputs, Model, Step, clear_gradients, tensors_in, training_step
from autofuse.measure.timing import Timings, interleaved
from autofuse.report.comparison import Category, Comparison


def compare(
    before: Model,
    after: Model,
    inputs: Inputs,
    step: Step | None = None,
    *,
    pairs: int = 30,
    warmup: int = 3,
    seed: int = 0,
    progress: bool = True,
) -> Comparison:
    """Measure whole steps of `before` against `after` in one process, in interleaved pairs of random order.

    inputs: a tensor, a tuple of positional arguments or a dict of keywords, as for optimize. step(model, inputs): what
    one step is; by default forward, a loss of all floating outputs, backward, gradients cleared. Models are measured in
    the mode (train or eval) that they are in. pairs: how many to time, 30 or more for a result to rely on; warmup:
    untimed steps of each first. seed: of the order within pairs and of the bootstrap, not of the model.
    progress: a bar on stderr, where that is a terminal.

    The models come back as they were (see measure.state.preserved for what that covers): an optimizer's own state,
    where a step has one, does not. Raises ValueError for fewer than two pairs, TypeError for inputs of another kind.
    """
    if pairs < 2:
        raise ValueError(
            f"The A/A control needs two before-runs, and pairs={pairs} was asked for: pass pairs=30 or more."
        )
    device = device_of(before, inputs)
    modules = [model for model in (before, after) if isinstance(model, nn.Module)]
    actions = (partial(step or training_step, before, inputs), partial(step or training_step, after, inputs))
    with preserved(modules, list(tensors_in(inputs))), _bar(pairs, progress) as advance:
        times = interleaved(*actions, pairs=pairs, warmup=warmup, seed=seed, device=device, done=advance)
        # Gradients count as the step's, also where a step drops the last ones at its start instead of its end.
        clear_gradients((before, after), inputs)
        peaks = [peak_of(action, device) for action in actions]
        operators = [operators_of(action, device) for action in actions]
    return _comparison(times, peaks, operators, seed, device)


def _comparison(
    times: Timings, peaks: Sequence[Peak], operators: Sequence[Mapping[str, Category]], seed: int, device: torch.device
) -> Comparison:
    """What the figures amount to; of `peaks` and `operators` the first is before, the second after."""
    effect = estimate(times.before, times.after, seed=seed)
    identical = control(times.before, seed=seed)
    judgement = judge(effect, identical, len(times.before))
    return Comparison(
        ratio=effect.ratio,
        interval=effect.interval,
        control=identical,
        verdict=judgement.verdict,
        reason=judgement.reason,
        before_seconds=times.before,
        after_seconds=times.after,
        before_peak_bytes=peaks[0].bytes,
        after_peak_bytes=peaks[1].bytes,
        memory_source=peaks[0].source,
        operators_before=operators[0],
        operators_after=operators[1],
        environment=environment(device),
    )


def device_of(model: Model, inputs: Inputs) -> torch.device:
    """The accelerator that the model or its inputs are on; the CPU where all of them are there."""
    parameters: Iterator[Tensor] = model.parameters() if isinstance(model, nn.Module) else iter(())
    devices = (tensor.device for tensor in (*parameters, *tensors_in(inputs)))
    return next((device for device in devices if device.type not in ("cpu", "meta")), torch.device("cpu"))


@contextmanager
def _bar(pairs: int, wanted: bool) -> Iterator[Callable[[], None]]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (wanted and console.is_terminal)) as progress:
        task = progress.add_task("pairs of steps", total=pairs)
        yield lambda: progress.advance(task)
