"""The time of each kernel (on a CPU, each operator) in a step, by name. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelTotal:
    """A kernel, or on a CPU an operator.

    Attributes:
        count: how often it runs in one step, on average.
        seconds: its time in one step. Kernels on several streams may overlap. An operator's time does not include the
            operators that it calls.
        category: as in the profile's categories.
    """

    name: str
    category: str
    count: float
    seconds: float
