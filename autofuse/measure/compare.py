"""compare(before, after, inputs): measures time, memory and operators of two variants of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.measure.environment import environment
from autofuse.measure.memory import PeakMemory, measure_peak_memory
from autofuse.measure.operators import count_operators
from autofuse.measure.pair_count import PAIR_COUNTS, JudgedTimings, time_and_judge, warm_up
from autofuse.measure.preserved_state import preserve_state
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
    """Measures whole steps of `before` against `after` in one process, in interleaved pairs of random order.

    The models are measured in their current mode (train or eval), and their state is restored afterwards
    (`preserve_state` says which state). The state of an optimizer in `step` is not restored.

    If other programs keep the CPU busy, the comparison uses the time for which the steps had a core, and may run them
    with one thread. The reason of the verdict then says so (docs/measuring.md).

    Args:
        before: The first variant.
        after: The second variant.
        inputs: A tensor, a tuple of positional arguments, or a dict of keyword arguments, as for `optimize`.
        step: `step(model, inputs)` runs one step. By default: forward, a loss of all floating-point outputs, backward,
            and gradients cleared.
        pairs: How many pairs to time. By default as many as a clear verdict needs: 30 to 200, for up to 45 seconds.
        warmup: How many untimed steps of each model run first.
        seed: The seed of the order within pairs. The models' random numbers do not depend on it.
        progress: Whether to show a progress bar on stderr, if that is a terminal.

    Raises:
        ValueError: `pairs` is less than two.
        TypeError: `inputs` has another type.
    """
    if pairs is not None and pairs < 2:
        raise ValueError(
            f"The A/A control needs two runs of `before`, but pairs={pairs} is fewer. Pass pairs=30 or more."
        )
    device = device_of(before, inputs)
    modules = [model for model in (before, after) if isinstance(model, nn.Module)]
    actions = (partial(step or training_step, before, inputs), partial(step or training_step, after, inputs))
    threads = torch.get_num_threads()
    with (
        preserve_state(modules, list(tensors_in(inputs))),
        warm_up(*actions, warmup=warmup, device=device),
        _progress_bar(pairs, progress) as advance,
    ):
        judged = time_and_judge(*actions, pairs=pairs, seed=seed, device=device, done=advance)
        # A step may drop old gradients at its start. They must not count as memory from before the step.
        clear_gradients((before, after), inputs)
        peaks = [measure_peak_memory(action, device) for action in actions]
        operators = [count_operators(action, device) for action in actions]
    return _build_comparison(judged, peaks, operators, device, threads)


def _build_comparison(
    judged: JudgedTimings,
    peaks: Sequence[PeakMemory],
    operators: Sequence[Mapping[str, Category]],
    device: torch.device,
    threads: int,
) -> Comparison:
    """Builds the comparison.

    Args:
        judged: The timings with their verdict.
        peaks: The peak memory of `before` and of `after`.
        operators: The operators of `before` and of `after`, by category.
        device: The device of the steps.
        threads: The number of torch's threads before the measurement.
    """
    timings, uses_core_clock = judged.timings, judged.clock == "core"
    return Comparison(
        ratio=judged.effect.ratio,
        interval=judged.effect.interval,
        control=judged.control,
        verdict=judged.judgement.verdict,
        reason=judged.judgement.reason + _clock_remarks(judged, threads),
        before_seconds=timings.before,
        after_seconds=timings.after,
        before_peak_bytes=peaks[0].bytes,
        after_peak_bytes=peaks[1].bytes,
        memory_source=peaks[0].source,
        operators_before=operators[0],
        operators_after=operators[1],
        environment=environment(device) | {"threads": str(judged.threads)},
        clock=judged.clock,
        before_core_seconds=timings.before_core if uses_core_clock else (),
        after_core_seconds=timings.after_core if uses_core_clock else (),
    )


def _clock_remarks(judged: JudgedTimings, threads: int) -> str:
    """Returns sentences about the clock and the threads, if these differ from the usual; "" otherwise."""
    remarks = ""
    if judged.clock == "core":
        remarks = (
            f" Steps waited {judged.timings.waiting or 0:.0%} of their time for a core that other programs held: "
            "only the time for which they had a core is compared."
        )
    if judged.threads != threads:
        remarks += f" The {threads} threads of a step also waited for each other, so the steps ran with one thread."
    return remarks


def device_of(model: Model, inputs: Inputs) -> torch.device:
    """Returns the accelerator of the model or its inputs; the CPU if no tensor is on an accelerator."""
    parameters: Iterator[Tensor] = model.parameters() if isinstance(model, nn.Module) else iter(())
    devices = (tensor.device for tensor in (*parameters, *tensors_in(inputs)))
    return next((device for device in devices if device.type not in ("cpu", "meta")), torch.device("cpu"))


@contextmanager
def _progress_bar(pairs: int | None, enabled: bool) -> Iterator[Callable[[], None]]:
    rich = import_module("rich.progress")  # a late import: optimize() imports this module, but seldom compares
    console = import_module("rich.console").Console(stderr=True)
    columns = (
        rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeRemainingColumn()
    )  # fmt: skip
    is_visible = enabled and console.is_terminal
    with rich.Progress(*columns, console=console, transient=True, disable=not is_visible) as progress:
        task = progress.add_task("pairs of steps", total=pairs or PAIR_COUNTS[0])
        yield lambda: _advance_bar(progress, task)


def _advance_bar(progress: Any, task: Any) -> None:
    """Advances the bar by one pair. If the verdict needs more pairs, the end of the bar moves to the next count."""
    progress.advance(task)
    state = progress.tasks[task]
    if state.completed > (state.total or 0):
        progress.update(task, total=next((look for look in PAIR_COUNTS if look >= state.completed), state.completed))
