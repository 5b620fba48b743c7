"""How much a kind of collective sends, and how fast. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CollectiveRate:
    """One kind of collective of a step, on one rank. ranks: how many take part; None where that is not told. bytes: of
    all of them together. algorithm_bandwidth, bus_bandwidth: bytes a second, as nccl-tests define them; None where
    sizes or ranks are not told. waiting: seconds of a step that each rank, in order, waits in it for the last to come;
    empty where one rank's trace is known.
    """

    name: str
    ranks: int | None
    count: float
    bytes: float | None
    seconds: float
    algorithm_bandwidth: float | None = None
    bus_bandwidth: float | None = None
    waiting: tuple[float, ...] = ()
