"""Simulates how a step scales over several devices, from its time and from the bytes that have to be sent.

Nothing here runs or measures anything. Sources: ring collectives, R. Thakur et al., "Optimization of collective
communication operations in MPICH", 2005, and P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms", 2009:
each of n devices sends 2 (n-1)/n of the data in 2 (n-1) messages for an all-reduce, and (n-1)/n in n-1 messages for an
all-gather or a reduce-scatter. What each strategy sends: STRATEGIES.

How much of the sending is hidden behind computing is not known in advance. So every estimate has two values: `best`
with everything hidden that can be, and `worst` with nothing hidden. This file needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["strong", "weak"]
BUCKET = 25 * 2**20  # DistributedDataParallel's bucket_cap_mb
BACKWARD = 2 / 3  # fraction of a step's computing: the backward has two products for each product of the forward

STRATEGIES: Mapping[str, str] = {
    "ddp": "gradients are all-reduced in buckets of 25 MiB: 2 (n-1)/n x gradients; at best, the backward hides all "
    "of it (S. Li et al., PyTorch Distributed, 2020)",
    "fsdp": "parameters are gathered for the forward and again for the backward, gradients reduce-scattered: "
    "(n-1)/n x (2 x parameters + gradients); at best, the step hides all of it (ZeRO stage 3, Rajbhandari et al. "
    "2020; PyTorch FSDP, Zhao et al. 2023)",
    "hsdp": "as fsdp within a group of g, and each device all-reduces its part of the gradients with its peers of the "
    "other r groups: 2 (r-1)/r x gradients / g more (Zhao et al. 2023)",
    "tp": "every block all-reduces activations twice forward and twice backward: 4 x blocks x 2 (n-1)/n x activations; "
    "nothing is hidden, because what follows waits for it (Megatron-LM, Shoeybi et al. 2019)",
    "pp": "every boundary sends activations forward and their gradients back: 2 x activations; of p stages and m "
    "microbatches the pipeline is idle for (p-1) / (m+p-1) of the step (GPipe, Huang et al. 2019)",
}


@dataclass(frozen=True)
class StepWork:
    """A step on one device, with the whole batch of strong scaling.

    Attributes:
        seconds: of the step, measured or given.
        parameters, gradients: bytes that are sent for them.
        activations: bytes at the boundary of a block: tokens x width x bytes of an element.
        blocks: number of repeated blocks.
        constant: the part of `seconds` that does not shrink with the batch. A probe with twice the batch and ratio r
            gives (2 - r) x seconds.
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
                f"A step takes more than 0 seconds, and its constant part at most the whole step; got {self.seconds} s "
                f"and {self.constant} s."
            )
        if min(self.parameters, self.gradients, self.activations, self.blocks) < 0 or self.microbatches < 1:
            raise ValueError("Bytes and blocks are 0 or more, and there is at least one microbatch.")


@dataclass(frozen=True)
class Link:
    """A link between two devices.

    Attributes:
        bytes_per_second: sent by one device while it receives as many.
        latency: seconds until a message arrives.
    """

    bytes_per_second: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_second < math.inf or not 0 <= self.latency < math.inf:
            raise ValueError(
                "A link sends more than 0 bytes a second, and a message takes 0 seconds or more, but the arguments are "
                f"{self.bytes_per_second} and {self.latency}."
            )

    def seconds(self, sent: float, messages: float) -> float:
        """Seconds to send so many bytes in so many messages, one after the other."""
        return sent / self.bytes_per_second + messages * self.latency


@dataclass(frozen=True)
class StepEstimate:
    """The simulated step of one strategy over a number of devices.

    Attributes:
        sent, messages: bytes that one device sends in a step, and in how many messages.
        computing: seconds of a step without sending, with the bubble of a pipeline.
        communication: seconds of sending.
        best, worst: seconds of a step with everything hidden that can be, and with nothing hidden.
        efficiency_best, efficiency_worst: speed of each device relative to one device alone.
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
    hidden: float  # share of the computing that can hide the sending


def estimate(
    work: StepWork, strategy: str, devices: int, link: Link, *,
    mode: Mode = "strong", group: int = 1, across: Link | None = None,
) -> StepEstimate:  # fmt: skip
    """The estimated step.

    Args:
        work: the step on one device.
        strategy: a key of STRATEGIES.
        devices: at least 1.
        link: between two devices.
        mode: "strong" divides the batch over all devices; "weak" gives each of them `work`'s batch.
        group: devices that share one copy, for hsdp.
        across: the link between groups, if it differs.

    Raises:
        ValueError: an unknown strategy, fewer than one device, or groups that do not divide the devices.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"There is no strategy {strategy!r}. Use one of {', '.join(STRATEGIES)}.")
    if devices < 1 or group < 1 or (strategy == "hsdp" and devices % group):
        raise ValueError(f"{devices} devices cannot be divided into groups of {group}.")
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
        return _sharded_traffic(work, devices, units, link)
    if strategy == "hsdp":
        within = _sharded_traffic(work, group, units, link)
        part = work.gradients / group
        among = _all_reduce(part, devices // group, units, across, BACKWARD)
        return _Traffic(within.sent + among.sent, within.messages + among.messages, within.seconds + among.seconds, 1.0)
    if strategy == "tp":
        times = 4 * work.blocks
        return _all_reduce(times * activations, devices, times, link, 0.0)
    messages = 2 * work.microbatches
    return _Traffic(2 * activations, messages, link.seconds(2 * activations, messages), 0.0)


def _all_reduce(data: float, devices: int, times: int, link: Link, hidden: float) -> _Traffic:
    """The traffic of `times` all-reduces that send `data` bytes in total."""
    sent, messages = 2 * (devices - 1) / devices * data, 2 * (devices - 1) * times
    return _Traffic(sent, messages, link.seconds(sent, messages), hidden)


def _sharded_traffic(work: StepWork, devices: int, units: int, link: Link) -> _Traffic:
    sent = (devices - 1) / devices * (2 * work.parameters + work.gradients)
    messages = 3 * (devices - 1) * units
    return _Traffic(sent, messages, link.seconds(sent, messages), 1.0)


@dataclass(frozen=True)
class Advice:
    """The recommended strategy, "" if none is known to fit, and the reason as a sentence."""

    strategy: str
    why: str
    simulated: bool = True


def recommend(estimates: Sequence[StepEstimate], fits: Mapping[str, bool | None]) -> Advice:
    """Of the strategies that fit into memory, the one with the highest efficiency at worst.

    Of two strategies within 1 % of each other, the first one is taken, because it is simpler.

    Args:
        estimates: at least one.
        fits: whether a device can hold its part. A strategy with None, which means unknown, is not recommended.

    Raises:
        ValueError: no estimates.
    """
    if not estimates:
        raise ValueError("There is no estimate to choose from: pass at least one.")
    fitting = [e for e in estimates if fits.get(e.strategy)]
    not_fitting = [e.strategy for e in estimates if fits.get(e.strategy) is False]
    left_out = f" {', '.join(not_fitting)} would not fit." if not_fitting else ""
    if not fitting:
        return Advice("", f"No strategy is known to fit.{left_out}")
    most = max(e.efficiency_worst for e in fitting)
    best = next(e for e in fitting if e.efficiency_worst >= 0.99 * most)
    return Advice(
        best.strategy,
        f"Of the strategies that fit, {best.strategy} is the most efficient: {best.efficiency_worst:.0%} of each "
        f"device's speed in the worst case, and {best.efficiency_best:.0%} in the best case.{left_out}",
    )
