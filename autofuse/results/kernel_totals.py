"""What each kernel (on a CPU, each operator) takes in a step, by name. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelTotal:
    """A kernel, or on a CPU an operator. count: how often it runs in one step, on average. seconds: of one step; the
    durations of kernels on several streams may overlap, and an operator's are its own, without what it calls.
    category: as in the profile's categories.
    """

    name: str
    category: str
    count: float
    seconds: float
