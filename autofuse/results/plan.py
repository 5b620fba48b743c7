"""A training step that is planned on paper: its memory before and after fusion. Plain data and its forms.

All numbers here are simulated, and each display says so. Nothing was timed or allocated. This file depends neither on
torch nor on how a plan is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autofuse.results.data import Malformed, dumped, loaded
from autofuse.results.profile import Memory
from autofuse.results.shown import Shown
from autofuse.results.table import Cell, Column, Table
from autofuse.results.units import percent, size

FORMAT_VERSION = 1
SIMULATED = "Simulated: nothing was run or allocated."
Fit = Literal["fits", "does not fit", "too close to tell", "unknown"]
_KINDS = ("parameters", "buffers", "gradients", "optimizer", "activations", "inputs", "temporaries")
_TONES: Mapping[str, Any] = {"fits": "good", "does not fit": "bad", "too close to tell": "warn", "unknown": "plain"}


@dataclass(frozen=True)
class Setting:
    """The setting of a plan.

    Attributes:
        batch: the samples on one device; None if the inputs do not show them.
        sequence: the length on one device; None if the inputs do not show it.
        dtype: of parameters and buffers; "" as in the model.
        autocast: the dtype in which operators compute; "" without autocast.
        checkpointing: "none", "block", or patterns of module names.
        strategy: how the model is distributed.
        devices: the number of devices.
        tensor: the devices of a group of tensor parallelism.
        pipeline: the stages of a pipeline.
        context: the parts of the sequence.
        microbatches: of a step of the pipeline. `batch` is one of them.
        master: whether the optimizer keeps parameters in float32.
        offload: what is in the host's memory: "none", "optimizer", or "parameters" with all states.
    """

    batch: int | None = None
    sequence: int | None = None
    dtype: str = ""
    autocast: str = ""
    checkpointing: str = "none"
    optimizer: str = "adamw"
    strategy: str = "none"
    devices: int = 1
    master: bool = False
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    microbatches: int = 8
    offload: str = "none"


@dataclass(frozen=True)
class Capacity:
    """The memory of one device. source: where the number comes from."""

    bytes: int
    device: str = ""
    source: str = ""


@dataclass(frozen=True)
class Side:
    """One device's memory at the peak of a step, before or after fusion.

    Attributes:
        reason: why it could not be planned.
        error: the largest relative error of checked estimates.
        layers: the bytes at the peak by module, for the whole model on one device.
        fused: the number of fused places.
        fit: whether it fits, with the error added.
        largest_batch: the largest batch that fits with the error added; 0 if not even one sample does.
        states_bytes: parameters, gradients and optimizer state of one device, when they are largest.
        host_bytes: the bytes of one device that are in the host's memory.
    """

    memory: Memory
    error: float = 0.0
    layers: Mapping[str, int] = field(default_factory=dict)
    fused: int = 0
    fit: Fit = "unknown"
    largest_batch: int | None = None
    reason: str = ""
    states_bytes: int | None = None
    host_bytes: int = 0


@dataclass(frozen=True)
class Plan(Shown):
    """A plan for one setting.

    Attributes:
        error_basis: how the errors of the two sides were found.
        scaling: the cost of communication and how the step would scale; None if it was not requested.
    """

    name: str
    setting: Setting
    before: Side
    after: Side
    error_basis: str
    capacity: Capacity | None = None
    scaling: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    simulated: bool = True

    @property
    def saved_bytes(self) -> int | None:
        """The memory that fusion saves at the peak, on one device."""
        before, after = self.before.memory.peak_bytes, self.after.memory.peak_bytes
        return None if before is None or after is None else before - after

    def to_dict(self) -> dict[str, Any]:
        """`version` and `type` "plan", then each field under its own name. See docs/json.md."""
        return {"version": FORMAT_VERSION, "type": "plan", **dumped(self)}

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """The inverse of to_dict.

        Raises:
            Malformed: The data is not from to_dict.
        """
        if not isinstance(data, Mapping) or data.get("type") != "plan" or data.get("version") != FORMAT_VERSION:
            raise Malformed(f"This is not a plan of autofuse in format version {FORMAT_VERSION}.")
        return loaded(cls, data)

    @property
    def table(self) -> Table:
        """Kinds of memory, before and after fusion, and whether they fit."""
        columns = (
            Column("memory of one device"),
            Column("before", align="right"),
            Column("after fusion", align="right"),
        )
        sides = (self.before, self.after)
        rows = [(Cell(kind), *(Cell(_size_text(side, kind)) for side in sides)) for kind in _KINDS]
        rows.append((Cell("peak"), *(Cell(_size_text(side, "peak_bytes")) for side in sides)))
        if any(side.host_bytes for side in sides):
            rows.append((Cell("in the host's memory"), *(Cell(size(side.host_bytes)) for side in sides)))
        if self.capacity is not None:
            rows.append((Cell(f"in {size(self.capacity.bytes)}"), *(Cell(s.fit, _TONES[s.fit]) for s in sides)))
        if any(side.largest_batch is not None for side in sides):
            rows.append((Cell("largest batch that fits"), *(Cell(_number(side.largest_batch)) for side in sides)))
        return Table("autofuse plan (simulated)", columns, tuple(rows), " ".join(self.sentences))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences on the basis of the numbers, and on what a reader should know about them."""
        described = [SIMULATED, f"{self.name}: {self._settings()}."]
        if self.capacity is not None and self.capacity.source:
            described.append(f"Capacity: {self.capacity.device or 'given'}, {self.capacity.source}.")
        errors = f"{percent(self.before.error)} before"
        if not self.after.reason:
            errors += f" and {percent(self.after.error)} after fusion"
        described.append(f"Largest error where estimates were checked: {errors} ({self.error_basis}).")
        described += [f"After fusion: {self.after.reason}"] if self.after.reason else []
        return (*described, *self.notes)

    def _settings(self) -> str:
        of = self.setting
        parts = (
            f"batch {of.batch}" if of.batch else "", f"sequence {of.sequence}" if of.sequence else "",
            of.dtype and f"parameters in {of.dtype}", of.autocast and f"autocast to {of.autocast}",
            f"checkpointing {of.checkpointing}", f"optimizer {of.optimizer}",
            "float32 master parameters" if of.master else "",
            f"{of.strategy} over {of.devices} devices" if of.strategy != "none" else "one device",
            f"tensor parallelism over {of.tensor}" if of.tensor > 1 else "",
            f"{of.pipeline} pipeline stages, {of.microbatches} microbatches" if of.pipeline > 1 else "",
            f"context parallelism over {of.context}" if of.context > 1 else "",
            f"{of.offload} offloaded" if of.offload != "none" else "",
        )  # fmt: skip
        return ", ".join(filter(None, parts))


def _size_text(side: Side, field: str) -> str:
    value: int | None = getattr(side.memory, field)
    return size(None if side.memory.peak_bytes is None else value)


def _number(value: int | None) -> str:
    return "n/a" if value is None else f"{value:,}"
