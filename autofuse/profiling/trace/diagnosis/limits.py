"""Finds out what limits a GPU while it computes, its memory or its arithmetic, and how well that is used.

Kernels of products, convolutions and attention compute; others only move data. A product of few rows moves more than it
computes, too (a decoder reads its weights for one token). Recorded shapes show it, else names.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from autofuse.profiling.peaks import DevicePeak
from autofuse.profiling.trace.diagnosis.waiting import computes
from autofuse.profiling.trace.flops import count_flops
from autofuse.profiling.trace.intervals import IntervalLookup
from autofuse.profiling.trace.kernels import category_of, uses_tensor_cores
from autofuse.profiling.trace.launch_shapes import Device, device_number, shape_of
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event

COMPUTES = ("matmul", "attention")
# Kernels that multiply few rows: matrix-vector products, and attention of single tokens.
_FEW_ROWS = re.compile(r"gemv|gemmSN|splitkv|paged_attention|decode", re.IGNORECASE)
# Kernels of float32 arithmetic: cuBLAS's sgemm, CUTLASS's simt, and names with their instruction or dtype.
_SINGLE = re.compile(r"sgemm|simt|ffma|f32f32_f32f32|_SB_|fp32", re.IGNORECASE)
_BALANCE = 50.0  # FLOP per byte, in half precision: with fewer, memory limits every accelerator of today
_ITEMS = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1}


@dataclass(frozen=True)
class Limits:
    """Nanoseconds of kernels within the steps, and how well the GPU is used.

    arithmetic: of kernels that compute.
    tensor: the part of `arithmetic` on tensor cores.
    memory: of kernels that move data.
    weights: the part of `memory` in products of few rows.
    sms: the fraction of the SMs that `arithmetic` has blocks for, by time; None if unknown.
    achieved: FLOP/s of `arithmetic` / the peak; None if unknown.
    longest: the kernel with the most time, and its nanoseconds.
    device, peak: as far as they are known.
    single: the part of `arithmetic` in kernels whose names say float32.
    tensor_cores: whether the device is known to have tensor cores (on AMD's: matrix cores).
    """

    arithmetic: float
    tensor: float
    memory: float
    weights: float
    sms: float | None
    achieved: float | None
    longest: tuple[str, float]
    device: str
    peak: DevicePeak | None
    single: float
    tensor_cores: bool


def limits_of(scope: Scope) -> Limits:
    """Return the limits of everything that computes in the steps."""
    few_rows = _memory_bound_products(scope)
    arithmetic = tensor = memory = weights = single = 0.0
    known = occupied = 0.0
    by_name = Counter[str]()
    for work in scope.work:
        time = scope.nanoseconds(work)
        if not time or not computes(work):
            continue
        by_name[work.name] += time
        if work.category == "kernel" and (shape := _fraction_of_sms(work, scope)) is not None:
            known += time
            occupied += time * shape
        if work.category != "kernel" or category_of(work.name) not in COMPUTES:
            memory += time
        elif _FEW_ROWS.search(work.name) or _launched_in(work, few_rows, scope):
            memory += time
            weights += time
        else:
            arithmetic += time
            tensor += time if uses_tensor_cores(work.name) else 0
            single += time if _SINGLE.search(work.name) and not uses_tensor_cores(work.name) else 0
    whole = arithmetic + memory
    return Limits(
        arithmetic, tensor, memory, weights, occupied / known if known > 0.8 * whole and known else None,
        _achieved_fraction(scope, arithmetic + weights, scope.peak), _longest_kernel(by_name), scope.device_name,
        scope.peak, single, _tensor_cores(scope, scope.peak, tensor),
    )  # fmt: skip


def _tensor_cores(scope: Scope, peak: DevicePeak | None, tensor: float) -> bool:
    """Whether the GPU has tensor cores, from its data sheet, its compute capability, or a kernel that uses them."""
    if peak is not None and not peak.source.startswith("--"):
        half, single = peak.flops.get("float16", 0.0), peak.flops.get("float32", 0.0)
        return half > 2 * single > 0 or "tensorfloat32" in peak.flops
    return tensor > 0 or any(d.nvidia and d.capability >= (7, 0) for d in scope.devices.values())


def _longest_kernel(by_name: Counter[str]) -> tuple[str, float]:
    return by_name.most_common(1)[0] if by_name else ("", 0.0)


def _fraction_of_sms(work: Event, scope: Scope) -> float | None:
    return shape_of(work, scope.devices.get(device_number(work), Device())).efficiency


def _achieved_fraction(scope: Scope, nanoseconds: float, peak: DevicePeak | None) -> float | None:
    found = count_flops(scope)
    rate = None if peak is None or isinstance(found, str) else peak.flops.get(found.dtype)
    if not rate or isinstance(found, str) or not nanoseconds:
        return None
    share = found.total * scope.steps.count / (nanoseconds * 1e-9) / rate
    return share if share <= 1 else None


def _memory_bound_products(scope: Scope) -> dict[tuple[Any, Any], IntervalLookup]:
    """Return, by thread, the intervals of operators whose products are bound by memory."""
    found: dict[tuple[Any, Any], list[tuple[int, int]]] = {}
    balance = _BALANCE
    if scope.peak is not None and scope.peak.bytes_per_second:  # half of the balance: clearly memory-bound
        balance = max(balance, 0.5 * scope.peak.flops.get("float16", 0.0) / scope.peak.bytes_per_second)
    for event in scope.trace.of("cpu_op"):
        at = _PRODUCTS.get(event.name)
        if at is not None and scope.begins(event) and _is_memory_bound(event, at, balance):
            found.setdefault((event.process, event.thread), []).append((event.start, event.end))
    return {thread: IntervalLookup(ranges) for thread, ranges in found.items()}


_PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}


def _is_memory_bound(event: Event, at: int, balance: float) -> bool:
    dims, types = event.args.get("Input Dims"), event.args.get("Input type")
    try:
        one, other = dims[at], dims[at + 1]  # type: ignore[index]
        size = _ITEMS.get(types[at], 4) if isinstance(types, list) else 4
        result = math.prod(one[:-1]) * other[-1]
        flops = 2 * result * one[-1]
        moved = size * (math.prod(one) + math.prod(other) + result)
    except (IndexError, TypeError):
        return False
    return bool(moved) and flops / moved < balance


def _launched_in(work: Event, ranges: dict[tuple[Any, Any], IntervalLookup], scope: Scope) -> bool:
    launch = scope.launch_of(work)
    return launch is not None and launch.start in ranges.get((launch.process, launch.thread), ())
