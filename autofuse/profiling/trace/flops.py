"""Counts FLOPs of matrix products and attention from a GPU's trace that has shapes (record_shapes=True).

The conventions are those of torch.utils.flop_counter: a product of (m, k) and (k, n) is 2mkn. Attention counts as if
nothing were masked, and its backward pass includes the scores that it computes again. There is a number only if the
counted operators launched all but a fiftieth of the kernel time of products and attention. A convolution or a kernel of
another library may prevent it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autofuse.profiling.trace.intervals import IntervalLookup
from autofuse.profiling.trace.kernels import category_of, uses_tensor_cores
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event
from autofuse.results.ladder import Level

COVERED = 0.98  # the least fraction of the kernel time of products and attention that must be counted

Dims = Sequence[Sequence[int]]


@dataclass(frozen=True)
class CountedFlops:
    """FLOPs of one step by dtype, as torch names them; "tensorfloat32" is float32 on tensor cores."""

    flops: dict[str, float]

    @property
    def total(self) -> float:
        """FLOPs of all dtypes together."""
        return sum(self.flops.values())

    @property
    def dtype(self) -> str:
        """The dtype of most FLOPs."""
        return max(self.flops, key=lambda name: self.flops[name])


def count_flops(scope: Scope) -> CountedFlops | str:
    """Return the FLOPs of one step, or the reason why they are unknown."""
    counted_operators = [event for event in scope.trace.of("cpu_op") if event.name in _FORMULAS]
    events = [event for event in counted_operators if scope.begins(event)]
    if not events:
        return "no matrix product of the trace has its shapes: take it with torch.profiler.profile(record_shapes=True)"
    flops: dict[str, float] = defaultdict(float)
    for event in events:
        count, dtype = _flops(event), _dtype(event)
        if count is None or not dtype:
            return f"the trace does not have the shapes of every {event.name}: take it with record_shapes=True"
        flops[dtype] += count
    covered, tensor = _coverage(counted_operators, scope)
    if covered < COVERED:
        return f"shapes are known for only {covered:.0%} of the kernel time of products, convolutions and attention"
    if tensor and "float32" in flops and all(device.nvidia for device in scope.devices.values()):
        flops["tensorfloat32"] += flops.pop("float32")
    return CountedFlops({name: count / scope.steps.count for name, count in flops.items()})


def hfu_of(scope: Scope, found: CountedFlops | str) -> Level:
    """Return hardware FLOPs utilisation, if the FLOPs and the GPU's peak are known."""
    if isinstance(found, str):
        return Level("hfu", reason=found)
    name, peak = scope.device_name, scope.peak
    rate = None if peak is None else peak.flops.get(found.dtype)
    if peak is None or not rate:
        return Level(
            "hfu", reason=f"autofuse has no data sheet for {name or 'the GPU'} in {found.dtype}: pass --peak-flops"
        )
    seconds = scope.steps.seconds * max(1, len(scope.by_device))
    share = found.total / seconds / rate if seconds else 0.0
    of_peak = f"{rate:.4g} FLOP/s in {found.dtype} ({peak.source})"
    basis = f"{found.total:.4g} FLOP of recorded shapes / {seconds:.4g} s / {of_peak}"
    if share > 1:
        return Level("hfu", reason=f"it would be {share:.2f}, which is impossible: {basis}")
    return Level("hfu", share, basis)


def _flops(event: Event) -> float | None:
    dims = event.args.get("Input Dims")
    try:
        return _FORMULAS[event.name](dims) if isinstance(dims, list) else None
    except (IndexError, TypeError, ValueError):
        return None


def _dtype(event: Event) -> str:
    types = event.args.get("Input type")
    named = [kind for kind in types if kind in _DTYPES] if isinstance(types, list) else []
    return _DTYPES[named[0]] if named else ""


def _coverage(events: Sequence[Event], scope: Scope) -> tuple[float, bool]:
    """Return the fraction of the time of products and attention that these operators launched.

    The second value says whether most of that time ran on tensor cores.
    """
    threads: dict[tuple[Any, Any], list[tuple[int, int]]] = {}
    for event in events:
        threads.setdefault((event.process, event.thread), []).append((event.start, event.end))
    within = {thread: IntervalLookup(ranges) for thread, ranges in threads.items()}
    total = known = tensor = 0
    for kernel in scope.kernels:
        if category_of(kernel.name) not in ("matmul", "attention") or not (time := scope.nanoseconds(kernel)):
            continue
        launch = scope.launch_of(kernel)
        total += time
        tensor += time if uses_tensor_cores(kernel.name) else 0
        if launch is not None and launch.start in within.get((launch.process, launch.thread), ()):
            known += time
    return known / total if total else 0.0, 2 * tensor > total


def _product_flops(at: int) -> Callable[[Dims], float]:
    """FLOPs of a product of the arguments `at` and `at + 1`: (..., m, k) and (..., k, n)."""

    def flops(dims: Dims) -> float:
        one, other = dims[at], dims[at + 1]
        if len(one) < 2 or len(other) < 2 or one[-1] != other[-2]:
            raise ValueError(dims)
        return 2.0 * math.prod(one) * other[-1]

    return flops


def _attention_flops(at: int, query_products: int, value_products: int) -> Callable[[Dims], float]:
    """FLOPs of attention. Query, key and value begin at argument `at`: (batch, heads, length, head_dim).

    query_products, value_products: the number of products with the depth of the query, and of the value.
    """

    def flops(dims: Dims) -> float:
        query, key, value = dims[at : at + 3]
        batch, heads, queries, depth = query
        return 2.0 * batch * heads * queries * key[2] * (query_products * depth + value_products * value[3])

    return flops


_FORMULAS: dict[str, Callable[[Dims], float]] = {
    "aten::mm": _product_flops(0),
    "aten::bmm": _product_flops(0),
    "aten::_scaled_mm": _product_flops(0),
    "aten::addmm": _product_flops(1),
    "aten::_addmm_activation": _product_flops(1),
    "aten::baddbmm": _product_flops(1),
    **{
        f"aten::_scaled_dot_product_{kind}_attention": _attention_flops(0, 1, 1)
        for kind in ("flash", "efficient", "cudnn")
    },
    **{
        f"aten::_scaled_dot_product_{kind}_attention_backward": _attention_flops(1, 3, 2)
        for kind in ("flash", "efficient", "cudnn")
    },
}
_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8", "c10::Float8_e5m2": "float8",
}  # fmt: skip
