"""Simulation: how a step would scale over several devices, by arithmetic on its time and on what has to be sent.

Nothing here runs or measures anything. Sources: ring collectives, R. Thakur et al., "Optimization of collective
communication operations in MPICH", 2005, and P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms", 2009:
of n devices each sends 2 (n-1)/n of the data for an all-reduce in 2 (n-1) messages, and (n-1)/n in n-1 messages for an
all-gather or a reduce-scatter. What each strategy sends: STRATEGIES.

How much of it is hidden behind computing is not known beforehand. So every estimate is two: with all of it hidden that
could be (`best`) and with none (`worst`). Knows numbers only, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["strong", "weak"]
BUCKET = 25 * 2**20  # DistributedDataParallel's bucket_cap_mb
BACKWARD = 2 / 3  # of a step's computing: two products for each of the forward's

STRATEGIES: Mapping[str, str] = {
    "ddp": "gradients are all-reduced in buckets of 25 MiB: 2 (n-1)/n x gradients; hidden behind the backward at best "
    "(S. Li et al., PyTorch Distributed, 2020)",
    "fsdp": "parameters are gathered for the forward and again for the backward, gradients reduce-scattered: "
    "(n-1)/n x (2 x parameters + gradients); hidden behind the whole step at best (ZeRO stage 3, Rajbhandari et al. "
    "2020; PyTorch FSDP, Zhao et al. 2023)",
    "hsdp": "as fsdp within a group of g, and each device all-reduces its part of the gradients with its peers of the "
    "other r groups: 2 (r-1)/r x gradients / g more (Zhao et al. 2023)",
    "tp": "every block all-reduces activations twice forward and twice backward: 4 x blocks x 2 (n-1)/n x activations; "
    "nothing is hidden, for what follows waits for it (Megatron-LM, Shoeybi et al. 2019)",
    "pp": "every boundary sends activations forward and their gradients back: 2 x activations; of p stages and m "
    "microbatches the pipe is idle for (p-1) / (m+p-1) of the step (GPipe, Huang et al. 2019)",
}


@dataclass(frozen=True)
class StepWork:
    """A step on one device, with the whole batch of strong scaling.

    seconds: of the step, measured or as somebody says. constant: the part of it that does not shrink with the batch
    (from the double-the-batch probe of ratio r: (2 - r) x seconds). parameters, gradients: bytes that are sent for
    them. activations: bytes at the boundary of a block, tokens x width x bytes of an element. blocks: repeated ones.
    microbatches: of a pipeline.
    """

    seconds: float
    parameters: int
    gradients: int
    activations: int = 0
    blocks: int = 0
    constant: float = 0.0
    microbatches: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf or not 0 <= self.constant <= self.seconds:
            raise ValueError(
                f"A step takes more than no time, and its constant part no more than it; got {self.seconds} s and "
                f"{self.constant} s."
            )
        if min(self.parameters, self.gradients, self.activations, self.blocks) < 0 or self.microbatches < 1:
            raise ValueError("Bytes and blocks are 0 or more, and there is at least one microbatch.")


@dataclass(frozen=True)
class Link:
    """Between two devices: bytes a second that one can send while it receives as many, and seconds until a message
    is there."""

    bytes_per_second: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_second < math.inf or not 0 <= self.latency < math.inf:
            raise ValueError(
                "A link sends more than 0 bytes a second, and a message takes 0 seconds or more; got "
                f"{self.bytes_per_second} and {self.latency}."
            )

    def seconds(self, sent: float, messages: float) -> float:
        """To send so many bytes in so many messages, one after the other."""
        return sent / self.bytes_per_second + messages * self.latency


@dataclass(frozen=True)
class StepEstimate:
    """One strategy over so many devices. Simulated.

    sent: bytes that one device sends in a step, in so many messages. computing: seconds of a step without them, with a
    pipeline's bubble. communication: their seconds. best, worst: seconds of a step with all of them hidden that could
    be, and with none. efficiency_best, efficiency_worst: speed per device, against one device alone.
    """

    strategy: str
    devices: int
    mode: Mode
    sent: float
    messages: int
    computing: float
    communication: float
    best: float
    worst: float
    efficiency_best: float
    efficiency_worst: float
    simulated: bool = True


@dataclass(frozen=True)
class _Traffic:
    sent: float
    messages: int
    seconds: float
    hidden: float  # the share of the computing behind which it can hide


def estimate(
    work: StepWork, strategy: str, devices: int, link: Link, *,
    mode: Mode = "strong", group: int = 1, across: Link | None = None,
) -> StepEstimate:  # fmt: skip
    """What a step would take. strong: the same batch over all devices; weak: `work`'s batch on each of them.

    group: of hsdp, how many devices share one copy; across: the link between groups, where it is another. Raises
    ValueError for a strategy that there is not, less than one device, and groups that do not make up the devices.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"There is no strategy {strategy!r}: {', '.join(STRATEGIES)}.")
    if devices < 1 or group < 1 or (strategy == "hsdp" and devices % group):
        raise ValueError(f"{devices} devices cannot be had in groups of {group}.")
    computing = work.constant + (work.seconds - work.constant) / devices if mode == "strong" else work.seconds
    if strategy == "pp":
        computing *= (work.microbatches + devices - 1) / work.microbatches
    batches = 1 if mode == "strong" else devices  # of activations, where all devices work on all samples
    traffic = _traffic(work, strategy, devices, link, across or link, group, batches)
    best = computing + max(0.0, traffic.seconds - traffic.hidden * computing)
    worst = computing + traffic.seconds
    alone = work.seconds / (devices if mode == "strong" else 1)
    return StepEstimate(
        strategy, devices, mode, traffic.sent, traffic.messages, computing, traffic.seconds, best, worst,
        alone / best, alone / worst,
    )  # fmt: skip


def _traffic(
    work: StepWork, strategy: str, devices: int, link: Link, across: Link, group: int, batches: int
) -> _Traffic:
    if devices == 1:
        return _Traffic(0.0, 0, 0.0, 0.0)
    units = max(1, work.blocks)
    activations = batches * work.activations
    if strategy == "ddp":
        return _all_reduce(work.gradients, devices, math.ceil(work.gradients / BUCKET), link, BACKWARD)
    if strategy == "fsdp":
        return _sharded(work, devices, units, link)
    if strategy == "hsdp":
        within = _sharded(work, group, units, link)
        part = work.gradients / group
        among = _all_reduce(part, devices // group, units, across, BACKWARD)
        return _Traffic(within.sent + among.sent, within.messages + among.messages, within.seconds + among.seconds, 1.0)
    if strategy == "tp":
        times = 4 * work.blocks
        return _all_reduce(times * activations, devices, times, link, 0.0)
    messages = 2 * work.microbatches
    return _Traffic(2 * activations, messages, link.seconds(2 * activations, messages), 0.0)


def _all_reduce(data: float, devices: int, times: int, link: Link, hidden: float) -> _Traffic:
    """`data` bytes in all, in so many all-reduces."""
    sent, messages = 2 * (devices - 1) / devices * data, 2 * (devices - 1) * times
    return _Traffic(sent, messages, link.seconds(sent, messages), hidden)


def _sharded(work: StepWork, devices: int, units: int, link: Link) -> _Traffic:
    sent = (devices - 1) / devices * (2 * work.parameters + work.gradients)
    messages = 3 * (devices - 1) * units
    return _Traffic(sent, messages, link.seconds(sent, messages), 1.0)


@dataclass(frozen=True)
class Advice:
    """The strategy to take, "" where none is known to fit; why, in a sentence."""

    strategy: str
    why: str
    simulated: bool = True


def recommended(estimates: Sequence[StepEstimate], fits: Mapping[str, bool | None]) -> Advice:
    """Memory first, then what is sure: of the strategies that fit, the one with the highest efficiency at worst.

    fits: whether one device holds what a strategy leaves it; None where that is not known, and such a strategy is not
    advised. Where two are within 1 % of each other, the one that comes first is taken: it is the simpler one.
    Raises ValueError without estimates.
    """
    if not estimates:
        raise ValueError("There is nothing to choose from: estimate one strategy at least.")
    fitting = [e for e in estimates if fits.get(e.strategy)]
    not_fitting = [e.strategy for e in estimates if fits.get(e.strategy) is False]
    left_out = f" {', '.join(not_fitting)} would not fit." if not_fitting else ""
    if not fitting:
        return Advice("", f"Of no strategy is it known that it fits.{left_out}")
    most = max(e.efficiency_worst for e in fitting)
    best = next(e for e in fitting if e.efficiency_worst >= 0.99 * most)
    return Advice(
        best.strategy,
        f"Of what fits, {best.strategy} keeps most: {best.efficiency_worst:.0%} of each device's speed if nothing it "
        f"sends is hidden behind computing, {best.efficiency_best:.0%} if all is that can be.{left_out}",
    )
