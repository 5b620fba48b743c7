"""The parts of a profile: layers, places, times, memory. Plain data, without measuring and without drawing.

Seconds, bytes, operators and FLOPs are those of one step: the mean over the observed steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from autofuse.results.comparison import Interval

OUTSIDE = "(outside)"  # the name of operators that run in no module, such as the loss
OPTIMIZER = "(optimizer)"  # the name of the optimizers' operators
COMMUNICATION = "(communication)"  # the name of communication between ranks

Regime = Literal["compute", "memory", "overhead", "inconclusive", "unknown"]
PlaceStatus = Literal["fused", "applies", "declined", "rolled-back"]


@dataclass(frozen=True)
class Work:
    """The cost of something in one step.

    Attributes:
        flops: the FLOPs that were executed, including recomputation.
        bytes: the bytes that its operators read and write, counted as if no data stayed in a cache.
        operators: the number of operators that ran (on a GPU: kernels).
        ideal_seconds: the sum of the times that the operators need at the machine's roofs; None without roofs.
    """

    seconds: float = 0.0
    flops: int = 0
    bytes: int = 0
    operators: int = 0
    ideal_seconds: float | None = None

    def __add__(self, other: Work) -> Work:
        ideals = [w.ideal_seconds for w in (self, other) if w.ideal_seconds is not None]
        return Work(
            self.seconds + other.seconds, self.flops + other.flops, self.bytes + other.bytes,
            self.operators + other.operators, sum(ideals) if ideals else None,
        )  # fmt: skip

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity in FLOPs per byte."""
        return self.flops / self.bytes if self.bytes else None


@dataclass(frozen=True)
class Place:
    """A rule and a layer: what could be fused there, was fused, or why it was not.

    Attributes:
        rule: the code of the rule, as in a report of optimize. So are `reason`, `reason_code`, `file` and `line`.
        status: as in a report of optimize, or "applies" for a place that would be fused.
        operation: the fused operation, for example "autofuse.ops.attention".
        calls: how often a step runs the place.
        seconds: what the original code of the place takes in a step, forward and backward.
        predicted_seconds: what the fused operation is predicted to take: its FLOPs and bytes at the machine's roofs.
        saved_bytes: the bytes that are no longer read or written.
        saved_flops: the FLOPs that are no longer computed.
        predicted_gain: the step's time before / after if only this place were fused. It does not exceed Amdahl's bound
            1 / (1 - seconds / step).
        measured_seconds: what the fused operation took, if it was measured.
        part_of: the larger place that contains this one, such as "AF304 in h.0.mlp". The saving of that place includes
            the saving of this one.
        saving_range: the range of seconds that fusing saves, from the errors of predictions for such places; None if
            such places were not measured.
    """

    rule: str
    status: PlaceStatus
    reason: str = ""
    operation: str = ""
    file: str = ""
    line: int | None = None
    calls: int = 1
    seconds: float | None = None
    predicted_seconds: float | None = None
    saved_bytes: int | None = None
    saved_flops: int | None = None
    predicted_gain: float | None = None
    measured_seconds: float | None = None
    part_of: str = ""
    layers: tuple[str, ...] = ()
    reason_code: str = ""
    saving_range: Interval | None = None

    @property
    def predicted_saving(self) -> float | None:
        """The seconds of a step that fusing is predicted to save."""
        if self.seconds is None or self.predicted_seconds is None:
            return None
        return self.seconds - self.predicted_seconds

    @property
    def measured_saving(self) -> float | None:
        """The seconds of a step that fusing saved."""
        if self.seconds is None or self.measured_seconds is None:
            return None
        return self.seconds - self.measured_seconds


@dataclass(frozen=True)
class Layer:
    """One module, by its fully qualified name.

    "" is the model itself, OUTSIDE the operators in no module, OPTIMIZER those of optimizers, and COMMUNICATION what
    ranks send each other. A forward that is computed again for its backward (checkpointing) is part of `backward`.

    Attributes:
        forward: with everything below the module.
        backward: likewise.
        own_forward: without the modules that it calls.
        own_backward: likewise.
        optimizer: the work of OPTIMIZER; empty for other layers.
        share: of the step's time, with everything below the module.
        share_interval: its 95 % interval over the recorded steps; None if one step was recorded.
        doubled: its own time with twice the batch / its own time.
        doubled_interval: the 95 % interval of `doubled`.
        roofline: the attained speed / the attainable speed at its intensity, a fraction of 1.
        regime: what limits it.
        why: the reason for `regime`.
        sm_efficiency: an estimate, on a GPU.
        peak_bytes: what this layer, without its children, allocated of the memory at the step's peak.
    """

    fqn: str
    kind: str
    calls: int
    forward: Work
    backward: Work
    own_forward: Work
    own_backward: Work
    share: float = 0.0
    roofline: float | None = None
    regime: Regime = "unknown"
    why: str = ""
    sm_efficiency: float | None = None
    peak_bytes: int | None = None
    places: tuple[Place, ...] = ()
    doubled: float | None = None
    doubled_interval: Interval | None = None
    optimizer: Work = field(default_factory=Work)
    share_interval: Interval | None = None

    @property
    def seconds(self) -> float:
        """Forward, backward and optimizer, with everything below."""
        return self.forward.seconds + self.backward.seconds + self.optimizer.seconds

    @property
    def own_seconds(self) -> float:
        """Forward, backward and optimizer, without the modules that it calls."""
        return self.own_forward.seconds + self.own_backward.seconds + self.optimizer.seconds

    @property
    def work(self) -> Work:
        """Forward, backward and optimizer, with everything below."""
        return self.forward + self.backward + self.optimizer

    @property
    def own_work(self) -> Work:
        """Forward, backward and optimizer, without the modules that it calls."""
        return self.own_forward + self.own_backward + self.optimizer


@dataclass(frozen=True)
class Timing:
    """The time of a step without instruments.

    Attributes:
        seconds: each timed step, in order.
        interval: the 95 % interval of the median.
        samples: in one step on this rank; None if unknown.
        tokens: likewise.
        yardstick: the seconds of a fixed piece of work that was timed next to each step. It shows how fast the machine
            was. May be empty.
    """

    seconds: tuple[float, ...]
    interval: Interval
    samples: int | None = None
    tokens: int | None = None
    yardstick: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """The median step in seconds; NaN if none was timed."""
        return median(self.seconds) if self.seconds else math.nan

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second, on this rank."""
        return self._rate(self.samples)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second, on this rank."""
        return self._rate(self.tokens)

    def _rate(self, count: int | None) -> float | None:
        return count / self.median if count is not None and self.median > 0 else None


@dataclass(frozen=True)
class Memory:
    """The bytes at the moment of a step when most are held, by purpose. They add up to peak_bytes.

    Attributes:
        activations: the tensors that a forward keeps for the backward.
        temporaries: the tensors that exist only within the forward or the backward.
        others: in a snapshot of the allocator, memory of unknown purpose.
        source: what counted the bytes.
        reason: why there are no numbers.
    """

    peak_bytes: int | None = None
    parameters: int = 0
    buffers: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    inputs: int = 0
    temporaries: int = 0
    source: str = ""
    reason: str = ""
    others: int = 0


@dataclass(frozen=True)
class Share:
    """A part of the step's time.

    Attributes:
        name: "forward", "backward", "optimizer", "data", "host", "communication", "exposed communication" or "idle".
            The first four and "idle" are disjoint. The host's overhead and communication run at the same time as they
            do.
        seconds: None if it is unknown; `reason` then says why.
        basis: how it was found.
        interval: the 95 % interval of the share over the observed steps; None for one step, or without a share.
    """

    name: str
    seconds: float | None
    share: float | None
    basis: str = ""
    reason: str = ""
    interval: Interval | None = None


@dataclass(frozen=True)
class Flops:
    """The FLOPs of one step on this rank; None if they were not counted.

    Attributes:
        model: the FLOPs of the original model, the same before and after fusion.
        hardware: the FLOPs that were executed, including recomputation.
        dtype: the dtype of most executed FLOPs, for example "bfloat16".
    """

    model: int | None = None
    hardware: int | None = None
    basis: str = ""
    reason: str = ""
    dtype: str = ""

    def asked_by(self, original: Flops) -> Flops:
        """These FLOPs, with the model FLOPs of the original code."""
        if original.model is None:
            return self
        return replace(self, model=original.model, basis=f"{self.basis}; model FLOPs are counted on the original code")


@dataclass(frozen=True)
class Roof:
    """The peak rates of the machine: FLOP/s in the dtype of most FLOPs, and bytes per second.

    Attributes:
        sources: where the numbers come from.
        measured: whether they were measured on this machine, by matrix products and copies.
        cached_bytes_per_second: the bandwidth of the fastest cache, if it was measured. An operator whose data stays in
            a cache may exceed the bandwidth of the memory, but not this one.
    """

    flops_per_second: float | None = None
    bytes_per_second: float | None = None
    dtype: str = ""
    device: str = ""
    flops_source: str = ""
    bytes_source: str = ""
    measured: bool = False
    cached_bytes_per_second: float | None = None

    @property
    def balance(self) -> float | None:
        """The intensity, in FLOPs per byte, above which compute is the limit and not memory."""
        if not self.flops_per_second or not self.bytes_per_second:
            return None
        return self.flops_per_second / self.bytes_per_second


@dataclass(frozen=True)
class Power:
    """The mean power of the device over the timed steps. reason: why it is unknown."""

    watts: float | None = None
    joules_per_step: float | None = None
    tokens_per_joule: float | None = None
    source: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Probe:
    """The ratio of step times, twice the batch / the batch, with its 95 % interval.

    Well below 2, overhead limits the step.
    """

    ratio: float | None = None
    interval: Interval | None = None
    verdict: Regime = "unknown"
    reason: str = ""


@dataclass(frozen=True)
class Attribution:
    """The fractions of the forward's and the backward's time that were attributed to modules.

    Attributes:
        overhead: time of a step with the instruments / without, in the run that attributed.
    """

    forward: float | None = None
    backward: float | None = None
    overhead: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Span:
    """A bar of the timeline, in seconds from the start of the step. lane: "phases", "GPU stream 7", "rank 0"."""

    lane: str
    name: str
    start: float
    seconds: float
    kind: str = ""


@dataclass(frozen=True)
class Rank:
    """One process of a job, with the times of its step.

    Attributes:
        communication: seconds of communication.
        exposed: the seconds of it during which the rank computed nothing.
        busy: a fraction of its step.
        waiting: seconds in collectives before the last rank joins them; None if unknown.
        waiting_exposed: the seconds of `waiting` during which the rank computes nothing. Only these can be gained.
        computing: seconds in which it computes.
        data: seconds in which it waits for data.
        host: seconds in which it waits for its host.
        copies: seconds in which it waits for copies or events.
        clock: the seconds to add to its clock so that collectives end at once for all ranks.
        clock_error: how far apart they end then, at the median.
    """

    rank: int
    seconds: float
    communication: float | None = None
    exposed: float | None = None
    busy: float | None = None
    waiting: float | None = None
    waiting_exposed: float | None = None
    computing: float | None = None
    data: float | None = None
    host: float | None = None
    copies: float | None = None
    clock: float | None = None
    clock_error: float | None = None


@dataclass(frozen=True)
class RankSteps:
    """One rank's row in a map of ranks and steps.

    Attributes:
        starts: seconds since the job's first step began, on one clock for all ranks.
        seconds: of each step.
        waiting: for each step, the seconds in collectives before the last rank joins them.
    """

    rank: int
    starts: tuple[float, ...]
    seconds: tuple[float, ...]
    waiting: tuple[float, ...]
