"""Bytes and bandwidth of a kind of collective. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CollectiveRate:
    """One kind of collective in a step, on one rank.

    Attributes:
        ranks: the number of ranks that take part; None if it is unknown.
        bytes: of all ranks together.
        algorithm_bandwidth: bytes per second as nccl-tests define it; None if sizes or ranks are unknown.
        bus_bandwidth: the same for the bus bandwidth of nccl-tests.
        waiting: the seconds of a step for which each rank, in order, waits for the last one; empty if only one rank's
            trace is known.
    """

    name: str
    ranks: int | None
    count: float
    bytes: float | None
    seconds: float
    algorithm_bandwidth: float | None = None
    bus_bandwidth: float | None = None
    waiting: tuple[float, ...] = ()
