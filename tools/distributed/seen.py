"""Counts the fused operators that ran, with torch's profiler: forward and recomputation, on every thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile

Seen = dict[str, int]  # kind -> calls

# For each kind, the operator of eager code, and the prefix of the operators in compiled code.
_OPERATORS = {
    "attention": ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_"),
    "norm": ("aten::rms_norm", "aten::_fused_rms_norm"),
    "silu": ("aten::silu", "aten::silu"),
}


@contextmanager
def count_fused(counts: Seen) -> Iterator[None]:
    """Count the fused operators that run in the block, by kind, into `counts`."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        yield
    names = Counter(e.name for e in recorded.events())
    for kind, (eager, lowered) in _OPERATORS.items():
        compiled = sum(n for name, n in names.items() if name.startswith(lowered) and "backward" not in name)
        if found := names[eager] or compiled:
            counts[kind] = found
