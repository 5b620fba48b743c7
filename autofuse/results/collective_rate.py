"""Bytes and bandwidth of a kind of collective. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CollectiveRate:
    """One kind of collective of a step, on one rank. ranks: how many take part; None if that is not known. bytes: of
    all ranks together. algorithm_bandwidth, bus_bandwidth: bytes per second, as nccl-tests define them; None if sizes
    or ranks are not known. waiting: seconds of a step that each rank, in order, waits in it for the last one to join;
    empty if one rank's trace is known.
    """

    name: str
    ranks: int | None
    count: float
    bytes: float | None
    seconds: float
    algorithm_bandwidth: float | None = None
    bus_bandwidth: float | None = None
    waiting: tuple[float, ...] = ()
