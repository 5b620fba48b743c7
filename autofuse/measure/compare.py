"""compare(before, after, inputs): time, memory and operators of two variants. It puts the parts together, no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.measure.environment import environment
from autofuse.measure.memory import PeakMemory, peak_of
from autofuse.measure.operators import operators_of
from autofuse.measure.pair_count import LOOKS, Decided, decided, warmed
from autofuse.measure.preserved_state import preserved
from autofuse.measure.step import Inputs, Model, Step, clear_gradients, training_step
from autofuse.results.comparison import Category, Comparison
from autofuse.torch_private.nested import tensors_in


def compare(
    before: Model,
    after: Model,
    inputs: Inputs,
    step: Step | None = None,
    *,
    pairs: int | None = None,
    warmup: int = 3,
    seed: int = 0,
    progress: bool = True,
) -> Comparison:
    """Measure whole steps of `before` against `after` in one process, in interleaved pairs of random order.

    inputs: a tensor, a tuple of positional arguments or a dict of keywords, as for optimize. step(model, inputs): what
    one step is; by default forward, a loss of all floating outputs, backward, gradients cleared. Models are measured in
    the mode (train or eval) that they are in. pairs: how many to time; without a number as many as it takes for a clear
    verdict, 30 to 200 or what 45 seconds hold. warmup: untimed steps of each first. seed: of the order within pairs,
    not of the model. progress: a bar on stderr, where that is a terminal.

    Where other programs keep a CPU busy, the comparison says so: it then goes by the time that steps had a core, and
    runs them with one thread (see docs/measuring.md).

    The models come back as they were (see measure.state.preserved for what that covers): an optimizer's own state,
    where a step has one, does not. Raises ValueError for fewer than two pairs, TypeError for inputs of another kind.
    """
    if pairs is not None and pairs < 2:
        raise ValueError(
            f"The A/A control needs two before-runs, and pairs={pairs} was asked for: pass pairs=30 or more."
        )
    device = device_of(before, inputs)
    modules = [model for model in (before, after) if isinstance(model, nn.Module)]
    actions = (partial(step or training_step, before, inputs), partial(step or training_step, after, inputs))
    threads = torch.get_num_threads()
    with (
        preserved(modules, list(tensors_in(inputs))),
        warmed(*actions, warmup=warmup, device=device),
        _bar(pairs, progress) as advance,
    ):
        found = decided(*actions, pairs=pairs, seed=seed, device=device, done=advance)
        # Gradients count as the step's, also where a step drops the last ones at its start instead of its end.
        clear_gradients((before, after), inputs)
        peaks = [peak_of(action, device) for action in actions]
        operators = [operators_of(action, device) for action in actions]
    return _comparison(found, peaks, operators, device, threads)


def _comparison(
    found: Decided, peaks: Sequence[PeakMemory], operators: Sequence[Mapping[str, Category]], device: torch.device,
    threads: int,
) -> Comparison:  # fmt: skip
    """What the figures amount to; of `peaks` and `operators` the first is before, the second after. `threads`: torch's,
    before anything was timed."""
    timings, by_core = found.timings, found.clock == "core"
    return Comparison(
        ratio=found.effect.ratio,
        interval=found.effect.interval,
        control=found.control,
        verdict=found.judgement.verdict,
        reason=found.judgement.reason + _clocked(found, threads),
        before_seconds=timings.before,
        after_seconds=timings.after,
        before_peak_bytes=peaks[0].bytes,
        after_peak_bytes=peaks[1].bytes,
        memory_source=peaks[0].source,
        operators_before=operators[0],
        operators_after=operators[1],
        environment=environment(device) | {"threads": str(found.threads)},
        clock=found.clock,
        before_core_seconds=timings.before_core if by_core else (),
        after_core_seconds=timings.after_core if by_core else (),
    )


def _clocked(found: Decided, threads: int) -> str:
    """What has to be said about how the steps were timed, to follow the reason."""
    said = ""
    if found.clock == "core":
        said = (
            f" Steps waited {found.timings.waiting or 0:.0%} of their time for a core that other programs held: "
            "compared is the time for which they had one."
        )
    if found.threads != threads:
        said += f" With {threads} threads they waited for each other too, so they ran with one."
    return said


def device_of(model: Model, inputs: Inputs) -> torch.device:
    """The accelerator that the model or its inputs are on; the CPU where all of them are there."""
    parameters: Iterator[Tensor] = model.parameters() if isinstance(model, nn.Module) else iter(())
    devices = (tensor.device for tensor in (*parameters, *tensors_in(inputs)))
    return next((device for device in devices if device.type not in ("cpu", "meta")), torch.device("cpu"))


@contextmanager
def _bar(pairs: int | None, wanted: bool) -> Iterator[Callable[[], None]]:
    rich = import_module("rich.progress")  # here, for the live door imports this module and compares only when asked
    console = import_module("rich.console").Console(stderr=True)
    columns = (
        rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeRemainingColumn()
    )  # fmt: skip
    shown = wanted and console.is_terminal
    with rich.Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task("pairs of steps", total=pairs or LOOKS[0])
        yield lambda: _advanced(progress, task)


def _advanced(progress: Any, task: Any) -> None:
    """One pair further. Where the first look was not enough, the bar's end moves to the next."""
    progress.advance(task)
    state = progress.tasks[task]
    if state.completed > (state.total or 0):
        progress.update(task, total=next((look for look in LOOKS if look >= state.completed), state.completed))
