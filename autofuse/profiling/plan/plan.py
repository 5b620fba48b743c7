"""plan(model, inputs): will a training step fit, before and after fusion. It puts the parts together, no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from autofuse.measure.step import Inputs, Step
from autofuse.profiling.live.batch_size import batch_of
from autofuse.profiling.plan.memory import ERROR_BASIS, OPTIMIZERS, PlannedModel
from autofuse.profiling.plan.paper import Paper, Unplannable
from autofuse.profiling.plan.sharding import SOURCES, STRATEGIES
from autofuse.profiling.plan.spreading import Scale, scaled
from autofuse.results import plan as report
from autofuse.results.plan import Capacity, Fit, Plan, Setting
from autofuse.results.profile import Memory

DTYPES = ("float32", "bfloat16", "float16", "float64")
_MOST_RUNS = 24
_NOT_COUNTED = (
    "Not counted: what a device's context, its allocator's gaps and communication buffers take. "
    "Operators and kernels are those of a CPU."
)


def plan(
    subject: nn.Module | str, inputs: Inputs | None = None, step: Step | None = None, *, batch: int | None = None,
    sequence: int | None = None, dtype: str = "", autocast: str = "", checkpointing: str = "none",
    optimizer: str = "adamw", strategy: str = "none", devices: int = 1, capacity: Capacity | None = None,
    fuse: bool = True, scale: Scale | None = None,
) -> Plan:  # fmt: skip
    """The memory of one device at the peak of a training step, simulated; nothing is computed or allocated.

    subject: a model with its `inputs` (as compare takes them; they may be on the meta device, and so may the model), or
    "module:factory" whose function returns them, and perhaps a step; it is built without allocating where it can be.
    step: as compare takes it, the optimizer's left out; without it forward, the outputs' mean squares and backward.
    batch, sequence: other sizes than the inputs have. dtype: of parameters, buffers and inputs; autocast: what
    operators compute in. checkpointing: "none", "block" (each of a model's repeated blocks), or patterns of module
    names, "layers.*". optimizer: "none", "adamw", "adam", "sgd", "momentum", "adagrad". strategy: "none", "ddp",
    "fsdp", "hsdp" (`devices` then is a group's size) or "tp", over `devices`. capacity: what has to hold it. fuse:
    whether to plan the other side, too. scale: also how the step would scale, from one device.

    Raises Unplannable, a ValueError, with a sentence for what cannot be planned and for a setting that there is not,
    and what a factory raises.
    """
    _check(dtype, autocast, optimizer, strategy, devices)
    if scale is not None and devices > 1:
        raise Unplannable("How a step scales is planned from one device: leave the strategy out.")
    paper = Paper()
    name = subject if isinstance(subject, str) else type(subject).__name__
    if isinstance(subject, str):
        made = paper.load(subject)
        subject, inputs, step = made.subject, made.inputs, made.step  # type: ignore[assignment]
    if inputs is None or not isinstance(subject, nn.Module):
        raise Unplannable("A step of a model is planned: give the model, and inputs to call it with.")
    cast = getattr(torch, dtype) if dtype else None
    known = batch_of(inputs)
    sizes = _Sizes(paper, inputs, cast, batch, sequence)
    length = None if known.tokens is None or not known.samples else known.tokens // known.samples
    setting = Setting(
        batch or known.samples, sequence or length, dtype, autocast, checkpointing, optimizer, strategy, devices
    )
    model = paper.model(subject, cast)
    sides = [
        _side(PlannedModel(paper, model, step, setting, fusing), sizes, capacity)
        for fusing in (False, True)[: 1 + fuse]
    ]
    notes = (_NOT_COUNTED, *((f"Spread: {SOURCES[strategy]}; derived, not measured.",) if strategy != "none" else ()))
    after = sides[1] if fuse else report.Side(Memory(reason="not asked for"), reason="It was not asked for.")
    scaling = None
    if scale is not None:
        best = after if after.memory.peak_bytes is not None else sides[0]
        scaling = scaled(model, best.memory, setting, scale, capacity, best.error)
    return Plan(name, setting, sides[0], after, ERROR_BASIS, capacity, scaling, notes)


class _Sizes:
    """The inputs of any batch."""

    def __init__(self, paper: Paper, inputs: Any, dtype: torch.dtype | None, batch: int | None, sequence: int | None):
        self._paper, self._inputs, self._dtype, self._sequence = paper, inputs, dtype, sequence
        self.batch = batch or batch_of(inputs).samples
        self._given = batch

    def of(self, batch: int | None = None) -> Any:
        return self._paper.inputs(self._inputs, batch or self._given, self._sequence, self._dtype)


def _side(side: PlannedModel, sizes: _Sizes, capacity: Capacity | None) -> report.Side:
    try:
        estimate = side.estimate(sizes.of())
    except (Unplannable, torch.OutOfMemoryError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        if not side.fusing:
            raise Unplannable(f"The step cannot be run without numbers ({why}).") from error
        return report.Side(Memory(reason=why), reason=f"It cannot be planned without numbers ({why}).")
    made = report.Side(estimate.memory, side.error, estimate.layers, estimate.fused)
    if capacity is None:
        return made
    peak = estimate.memory.peak_bytes or 0
    return replace(
        made, fit=_fit(peak, capacity.bytes, side.error), largest_batch=_largest(side, sizes, peak, capacity.bytes)
    )


def _fit(peak: int, room: int, error: float) -> Fit:
    if peak * (1 + error) <= room:
        return "fits"
    return "does not fit" if peak * (1 - error) > room else "too close to tell"


def _largest(side: PlannedModel, sizes: _Sizes, peak: int, room: int) -> int | None:
    """The largest batch that surely fits; a peak grows with the batch, so that it is searched by halving what is left.

    None where the inputs do not tell their batch.
    """
    if sizes.batch is None:
        return None
    room = int(room / (1 + side.error))
    known = {sizes.batch: peak}

    def fits(batch: int) -> bool:
        if batch not in known:
            known[batch] = side.estimate(sizes.of(batch)).memory.peak_bytes or 0
        return known[batch] <= room

    below, above = 0, None
    guess = sizes.batch
    for _ in range(_MOST_RUNS):
        if fits(guess):
            below = guess
        else:
            above = guess
        if above is None and _next_is_too_large(known, below, room):
            break
        if above is not None and above - below <= 1:
            break
        guess = _next(known, room, below, above)
    return below


def _next_is_too_large(known: dict[int, int], batch: int, room: int) -> bool:
    """A peak is the largest of sums that grow evenly with the batch: it never grows more slowly than it did before."""
    smaller = [b for b in known if b < batch]
    return any(known[batch] + (known[batch] - known[b]) / (batch - b) > room for b in smaller)


def _next(known: dict[int, int], room: int, below: int, above: int | None) -> int:
    """The batch to try: where the line through the two nearest known ones meets the room, and never outside."""
    if len(known) == 1:
        return 2 * below if above is None else max(1, above // 2)
    low, high = sorted(sorted(known, key=lambda batch: abs(known[batch] - room))[:2])
    slope = (known[high] - known[low]) / (high - low)
    guess = int(low + (room - known[low]) / slope) if slope > 0 else 2 * below
    return min(max(guess, below + 1), 64 * max(below, 1) if above is None else above - 1)


def _check(dtype: str, autocast: str, optimizer: str, strategy: str, devices: int) -> None:
    for what, value, possible in (
        ("dtype", dtype, ("", *DTYPES)), ("autocast", autocast, ("", "bfloat16", "float16")),
        ("optimizer", optimizer, OPTIMIZERS), ("strategy", strategy, STRATEGIES),
    ):  # fmt: skip
        if value not in possible:
            raise Unplannable(f"There is no {what} {value!r} to plan for: {', '.join(filter(None, possible))}.")
    if devices < 1 or (devices > 1) == (strategy == "none"):
        raise Unplannable(
            f"{devices} devices and strategy {strategy!r} do not go together: several devices take a strategy, "
            "and a strategy several devices."
        )
