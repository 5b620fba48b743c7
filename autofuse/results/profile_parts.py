"""The parts of a profile: layers, places, times, memory. Plain data; they know nothing of how it is had or drawn.

Seconds, bytes, operators and FLOPs are of one step, on average over the steps that were looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from autofuse.results.comparison import Interval

OUTSIDE = "(outside)"  # the name of what runs in no module: the loss
OPTIMIZER = "(optimizer)"  # the name of what optimizers run
COMMUNICATION = "(communication)"  # the name of what ranks send each other

Regime = Literal["compute", "memory", "overhead", "inconclusive", "unknown"]
PlaceStatus = Literal["fused", "applies", "declined", "rolled-back"]


@dataclass(frozen=True)
class Work:
    """What something costs in one step.

    flops: executed, so recomputation counts. bytes: what its operators read and write, each operator by itself, as if
    nothing stayed in a cache. operators: how many ran (on a GPU: kernels). ideal_seconds: the sum of what each operator
    needs at the machine's roofs; None without roofs.
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
        """Arithmetic intensity, FLOPs a byte."""
        return self.flops / self.bytes if self.bytes else None


@dataclass(frozen=True)
class Place:
    """A rule and a layer: what could be, or was, fused there, or why not.

    rule, status, reason, reason_code, file, line: as in a report of optimize; status "applies" is one that would be
    fused.
    operation: the fused operation, "autofuse.ops.attention". calls: how often a step runs the place.
    seconds: what the original code of the place takes in a step, forward and backward. predicted_seconds: what the
    fused operation is predicted to take: FLOPs and bytes that remain, at the machine's roofs. saved_bytes, saved_flops:
    what is read, written and computed less. predicted_gain: the step's time before / after if this place alone were
    fused, so never more than Amdahl's bound 1 / (1 - seconds / step). measured_seconds: what the fused operation took,
    measured, where it was. part_of: the larger place, "AF304 in h.0.mlp", that it is fused as a part of; what it would
    save by itself is in that one's saving already. saving_range: seconds that fusing saves, from how far predictions
    for such places were from measurements; None where such places were not measured.
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
        """Seconds of a step that fusing is predicted to save."""
        if self.seconds is None or self.predicted_seconds is None:
            return None
        return self.seconds - self.predicted_seconds

    @property
    def measured_saving(self) -> float | None:
        """Seconds of a step that fusing saved."""
        if self.seconds is None or self.measured_seconds is None:
            return None
        return self.seconds - self.measured_seconds


@dataclass(frozen=True)
class Layer:
    """One module, by its fully qualified name; "" for the model itself, OUTSIDE for what runs in no module, OPTIMIZER
    for what optimizers run, COMMUNICATION for what ranks send each other.

    forward, backward: with everything below it. own_forward, own_backward: without the modules that it calls.
    optimizer: what OPTIMIZER takes; of every other layer nothing. A forward that is computed again for its backward
    (checkpointing) is part of `backward`. share: of the step's time, with everything below it; share_interval: 95
    %, over the recorded steps, None where one step was recorded. doubled, doubled_interval: its own time with twice
    the batch / its own time, with a 95 % interval. roofline: what it attains / what is attainable at its intensity,
    a fraction of 1. regime: what holds it back, and `why`. sm_efficiency: estimated, on a GPU. peak_bytes: of the
    memory at the step's peak, what this layer allocated (without its children's).
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
        """Forward, backward and optimizer, without what it calls."""
        return self.own_forward.seconds + self.own_backward.seconds + self.optimizer.seconds

    @property
    def work(self) -> Work:
        """Forward, backward and optimizer, with everything below."""
        return self.forward + self.backward + self.optimizer

    @property
    def own_work(self) -> Work:
        """Forward, backward and optimizer, without what it calls."""
        return self.own_forward + self.own_backward + self.optimizer


@dataclass(frozen=True)
class Timing:
    """How long a step takes, timed with no instruments on. seconds: every timed step in order.

    interval: of the median, 95 %. samples, tokens: in one step on this rank; None where not known. yardstick: seconds
    of a fixed piece of work timed next to each step, which tells how fast the machine was then; may be empty.
    """

    seconds: tuple[float, ...]
    interval: Interval
    samples: int | None = None
    tokens: int | None = None
    yardstick: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """Seconds of the middle step; NaN where none was timed."""
        return median(self.seconds) if self.seconds else math.nan

    @property
    def samples_per_second(self) -> float | None:
        """Samples a second, on this rank."""
        return self._rate(self.samples)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens a second, on this rank."""
        return self._rate(self.tokens)

    def _rate(self, count: int | None) -> float | None:
        return count / self.median if count is not None and self.median > 0 else None


@dataclass(frozen=True)
class Memory:
    """Bytes held at the moment of a step in which most are held, by what they are for; they add up to peak_bytes.

    activations: what a forward keeps for the backward. temporaries: what lives within the forward or the backward only.
    others: what is not told, of a snapshot of the allocator. source: what counted. reason: why there is nothing.
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
    """A part of the step's time. name: "forward", "backward", "optimizer", "data", "host", "communication",
    "exposed communication", "idle". The first four and "idle" are disjoint; host overhead and communication run
    beside them. seconds: None where it cannot be told, and then `reason` says why. basis: how it was told. interval: of
    the share, 95 %, over the steps that were looked at; None where there was one step, or no share.
    """

    name: str
    seconds: float | None
    share: float | None
    basis: str = ""
    reason: str = ""
    interval: Interval | None = None


@dataclass(frozen=True)
class Flops:
    """FLOPs of one step on this rank: model counts what the model asks for, frozen on the original model, and is the
    same before and after fusion; hardware what was executed, recomputation included. None where nothing was counted.
    dtype: in which most of those executed are, "bfloat16".
    """

    model: int | None = None
    hardware: int | None = None
    basis: str = ""
    reason: str = ""
    dtype: str = ""

    def asked_by(self, original: Flops) -> Flops:
        """The same with what the original code asks for."""
        if original.model is None:
            return self
        return replace(self, model=original.model, basis=f"{self.basis}; the model's are counted on its original code")


@dataclass(frozen=True)
class Roof:
    """What the machine can do: FLOP/s in the dtype that most FLOPs are in, bytes a second.

    sources: where they come from; measured: on this machine, by running matrix products and copies.
    cached_bytes_per_second: what the fastest cache gives, where that was measured; what stays in a cache between two
    operators may lie above the memory's roof, and under this one.
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
        """The intensity, in FLOPs a byte, above which compute and not memory is the limit."""
        if not self.flops_per_second or not self.bytes_per_second:
            return None
        return self.flops_per_second / self.bytes_per_second


@dataclass(frozen=True)
class Power:
    """Mean power of the device over the timed steps. reason: why it could not be told."""

    watts: float | None = None
    joules_per_step: float | None = None
    tokens_per_joule: float | None = None
    source: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Probe:
    """The double-the-batch probe: t(2 x batch) / t(batch), with its 95 % interval. Well under 2: overhead rules."""

    ratio: float | None = None
    interval: Interval | None = None
    verdict: Regime = "unknown"
    reason: str = ""


@dataclass(frozen=True)
class Attribution:
    """How much of the forward's and the backward's time was given to modules, fractions of 1.

    overhead: time of a step under the instruments / time without, of the pass that attributed.
    """

    forward: float | None = None
    backward: float | None = None
    overhead: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Span:
    """A bar of the timeline strip, seconds from the step's beginning. lane: "phases", "GPU stream 7", "rank 0"."""

    lane: str
    name: str
    start: float
    seconds: float
    kind: str = ""


@dataclass(frozen=True)
class Rank:
    """One process of a job: its step, and its communication's seconds, all and what no computation ran beside.

    busy: a fraction of its step. waiting: seconds in collectives before the last rank has come to them; None where that
    cannot be told. waiting_exposed: those of them that no computation runs beside, which alone can be gained.
    computing, data, host, copies: seconds in which it computes, and in which it waits for data, for its host and for
    copies or events. clock: seconds to add to its clock so that collectives end for all ranks at once; clock_error: how
    far they are from that then, at the median.
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
    """One rank's row of a map of ranks and steps. starts: seconds since the job's first step began, on one clock for
    all ranks. seconds: of every step. waiting: seconds of each in collectives before the last rank has come to them."""

    rank: int
    starts: tuple[float, ...]
    seconds: tuple[float, ...]
    waiting: tuple[float, ...]
