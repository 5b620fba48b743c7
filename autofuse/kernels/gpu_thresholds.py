"""From how many elements our kernels are used on a GPU, depending on what the model's steps wait for.

A GPU needs a microsecond for 2^17 entries, and Python needs tens of microseconds for a call. So the size alone does not
decide. If steps wait for the GPU, each pass over memory that is saved counts, and Python costs nothing. If they wait
for launches (a profile calls this regime "overhead"), a call must save more GPU time than the Python time that it adds
to that of torch's functions.

Microseconds of Python are measured (benchmarks/results/launches.json, ten calls in a row). Bytes per second are those
of a copy on an H100, from its data sheet. The resulting thresholds are predictions: none of this was measured on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

_COPY = 3.0e12  # bytes a second
_ENTRY = 2  # bytes, of bfloat16


@dataclass(frozen=True)
class GpuThreshold:
    """The costs and savings of a fused call.

    Attributes:
        extra: microseconds of Python that a call with its backward pass adds to torch's functions; 0 if it adds none.
        saved: passes over memory that it saves, reads and writes of a tensor.
    """

    extra: float
    saved: int

    def least(self, launch_bound: bool | None) -> int:
        """The number of elements from which our kernels are used.

        Args:
            launch_bound: whether steps wait for launches. If None, the middle is assumed: the GPU waits for half of the
                added Python time.

        Returns:
            The number of elements; 0 means always.
        """
        if launch_bound is False or self.extra <= 0:
            return 0
        entries = self.extra * 1e-6 * _COPY / (_ENTRY * self.saved)
        return 1 << (int(entries) if launch_bound else int(entries / 2)).bit_length()
