"""From how many elements on our kernels are asked on a GPU, by what a model's steps wait for.

A GPU takes a microsecond for 2^17 entries, and Python takes tens of them for a call: whether a kernel of ours pays does
not follow from the size alone. Where steps wait for the GPU, each pass over memory that is left out counts, and Python
costs nothing. Where they wait for launches (a profile calls that regime "overhead"), a call must save more of the GPU's
time than it takes more of Python's than torch's own functions do. Microseconds of Python are measured
(benchmarks/results/launches.json, ten calls in a row); bytes a second are those of a copy on an H100 by its data sheet.
The thresholds that follow are predictions: nothing of this was measured on a GPU. Must not know kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

_COPY = 3.0e12  # bytes a second
_ENTRY = 2  # bytes, of bfloat16


@dataclass(frozen=True)
class GpuThreshold:
    """extra: microseconds that a call takes more of Python than torch's functions, with its backward pass; 0 where it
    takes less. saved: passes over memory that it leaves out, reads and writes of a tensor."""

    extra: float
    saved: int

    def least(self, launch_bound: bool | None) -> int:
        """Elements from which our kernels are asked; launch_bound None: where the regime is not known.

        What is not known is taken for the middle: the GPU waits for half of what Python takes more.
        """
        if launch_bound is False or self.extra <= 0:
            return 0
        entries = self.extra * 1e-6 * _COPY / (_ENTRY * self.saved)
        return 1 << (int(entries) if launch_bound else int(entries / 2)).bit_length()
