"""plan(model, inputs): whether a training step fits, before and after fusion. Only puts the parts together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from autofuse.fx.trace.user_code import can_watch
from autofuse.measure.step import Inputs, Step
from autofuse.profiling.live.batch_size import batch_of
from autofuse.profiling.plan.memory import ERROR_BASIS, PlannedModel
from autofuse.profiling.plan.paper import Paper, Unplannable
from autofuse.profiling.plan.settings import check_setting
from autofuse.profiling.plan.sharding import sources
from autofuse.profiling.plan.spreading import Scale, scaling_of
from autofuse.reasons import forwards
from autofuse.reasons.reason import because
from autofuse.results import plan as report
from autofuse.results.plan import Capacity, Fit, Plan, Setting
from autofuse.results.profile import Memory

_ONE_DEVICE: Any = {"devices": 1, "strategy": "none", "tensor": 1, "pipeline": 1, "context": 1}
_MOST_RUNS = 24  # planned steps in the search for the largest batch
_NOT_COUNTED = (
    "Not counted: the device's context, gaps of its allocator, and communication buffers. "
    "Operators and kernels are those of a CPU."
)
_PROFILED = (
    "A Python profiler, such as cProfile, is active, so forwards cannot be read and nothing can be fused: plan again "
    "without the profiler."
)


def plan(
    subject: nn.Module | str, inputs: Inputs | None = None, step: Step | None = None, *, batch: int | None = None,
    sequence: int | None = None, dtype: str = "", autocast: str = "", checkpointing: str = "none",
    optimizer: str = "adamw", strategy: str = "none", devices: int = 1, capacity: Capacity | None = None,
    fuse: bool = True, scale: Scale | None = None, master: bool = False, tensor: int = 1, pipeline: int = 1,
    context: int = 1, microbatches: int = 8, offload: str = "none",
) -> Plan:  # fmt: skip
    """The memory of one device at the peak of a training step, simulated; nothing is computed or allocated.

    Args:
        subject: a model with its `inputs`, or "module:factory" for a function that returns them and perhaps a step. The
            factory's model is built without allocating memory if possible.
        inputs: as `compare` takes them. They may be on the meta device, and so may the model.
        step: as `compare` takes it, without the optimizer's step. None: forward, mean squares of the outputs, backward.
        batch: another batch size than the inputs have.
        sequence: another sequence length than the inputs have.
        dtype: dtype of parameters, buffers and inputs.
        autocast: dtype of autocast.
        checkpointing: "none", "block" (every repeated block of the model), or patterns of module names, "layers.*".
        optimizer: "none", "adamw", "adam", "sgd", "momentum" or "adagrad".
        strategy: "none", "ddp", "zero1", "zero2", "fsdp" (ZeRO stage 3), "hsdp" (`devices` is then the size of a
            group), or "tp", over `devices`.
        devices: number of devices that share the step with `strategy`.
        capacity: the memory that has to hold the step.
        fuse: whether to plan the step after fusion too.
        scale: plan also how the step would scale from one device.
        master: whether the optimizer keeps float32 parameters and moments, while `dtype` is a half precision.
        tensor: devices of a group of tensor parallelism with sequence parallelism.
        pipeline: stages of a pipeline; the first one is planned, and `batch` is one microbatch.
        context: devices that divide the sequence. Sharded states are divided by these too.
        microbatches: in a step of the pipeline.
        offload: what is in the host's memory: "none", "optimizer", or "parameters" with all states (fsdp).

    Raises:
        Unplannable: a ValueError. Something cannot be planned, or a setting is unknown.
        Exception: whatever a factory raises.
    """
    setting = Setting(batch, sequence, dtype, autocast, checkpointing, optimizer, strategy, devices, master, tensor,
                      pipeline, context, microbatches, offload)  # fmt: skip
    check_setting(setting)
    if scale is not None and replace(setting, **_ONE_DEVICE) != setting:
        raise Unplannable("Scaling is planned from one device: leave out the strategy and the parallelism.")
    paper = Paper()
    name = subject if isinstance(subject, str) else type(subject).__name__
    if isinstance(subject, str):
        built = paper.load(subject)
        subject, inputs, step = built.subject, built.inputs, built.step  # type: ignore[assignment]
    if inputs is None or not isinstance(subject, nn.Module):
        raise Unplannable("Pass a model and inputs to call it with: plan estimates a step of the model.")
    cast = getattr(torch, dtype) if dtype else None
    known = batch_of(inputs)
    sizes = _Sizes(paper, inputs, cast, batch, sequence)
    length = None if known.tokens is None or not known.samples else known.tokens // known.samples
    setting = replace(setting, batch=batch or known.samples, sequence=sequence or length)
    model = paper.model(subject, cast)
    sides = [
        _plan_side(PlannedModel(paper, model, step, setting, fusing), sizes, capacity)
        for fusing in (False, True)[: 1 + fuse]
    ]
    notes = (_NOT_COUNTED, *(f"By formula, not measured: {source}." for source in sources(setting)))
    after = sides[1] if fuse else report.Side(Memory(reason="not requested"), reason="It was not requested.")
    scaling = None
    if scale is not None:
        best = after if after.memory.peak_bytes is not None else sides[0]
        scaling = scaling_of(model, best.memory, setting, scale, capacity, best.error)
    return Plan(name, setting, sides[0], after, ERROR_BASIS, capacity, scaling, notes)


class _Sizes:
    """Creates the inputs for any batch size."""

    def __init__(self, paper: Paper, inputs: Any, dtype: torch.dtype | None, batch: int | None, sequence: int | None):
        self._paper, self._inputs, self._dtype, self._sequence = paper, inputs, dtype, sequence
        self.batch = batch or batch_of(inputs).samples
        self._given = batch

    def of(self, batch: int | None = None) -> Any:
        return self._paper.inputs(self._inputs, batch or self._given, self._sequence, self._dtype)


def _plan_side(side: PlannedModel, sizes: _Sizes, capacity: Capacity | None) -> report.Side:
    if side.fusing and not can_watch():  # without a fused site, the two sides would be equal
        return report.Side(Memory(reason=str(because(forwards.PROFILED))), reason=_PROFILED)
    try:
        estimate = side.estimate(sizes.of())
    except (Unplannable, torch.OutOfMemoryError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        if not side.fusing:
            raise Unplannable(
                f"The step cannot be run on tensors without numbers ({why}). Remove the part of the step that "
                "reads values."
            ) from error
        return report.Side(Memory(reason=why), reason=f"It cannot be planned without numbers ({why}).")
    result = report.Side(
        estimate.memory, side.error, estimate.layers, estimate.fused, states_bytes=estimate.states_bytes,
        host_bytes=estimate.host_bytes,
    )  # fmt: skip
    if capacity is None:
        return result
    peak = estimate.memory.peak_bytes or 0
    return replace(
        result,
        fit=_fit_of_peak(peak, capacity.bytes, side.error),
        largest_batch=_largest_batch(side, sizes, peak, capacity.bytes),
    )


def _fit_of_peak(peak: int, room: int, error: float) -> Fit:
    if peak * (1 + error) <= room:
        return "fits"
    return "does not fit" if peak * (1 - error) > room else "too close to tell"


def _largest_batch(side: PlannedModel, sizes: _Sizes, peak: int, room: int) -> int | None:
    """The largest batch that fits with the error added. The peak grows with the batch, so bisection finds it.

    None if the inputs do not show their batch.
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
        guess = _next_batch(known, room, below, above)
    return below


def _next_is_too_large(known: dict[int, int], batch: int, room: int) -> bool:
    """Whether the next batch is too large. A peak is the largest of sums that grow evenly, so its slope never falls."""
    smaller = [b for b in known if b < batch]
    return any(known[batch] + (known[batch] - known[b]) / (batch - b) > room for b in smaller)


def _next_batch(known: dict[int, int], room: int, below: int, above: int | None) -> int:
    """The batch to try next: a line through the two nearest known peaks reaches the capacity there."""
    if len(known) == 1:
        return 2 * below if above is None else max(1, above // 2)
    low, high = sorted(sorted(known, key=lambda batch: abs(known[batch] - room))[:2])
    slope = (known[high] - known[low]) / (high - low)
    guess = int(low + (room - known[low]) / slope) if slope > 0 else 2 * below
    return min(max(guess, below + 1), 64 * max(below, 1) if above is None else above - 1)
