"""Measures what an operator takes per element on this machine, on a small piece of it that stays in a cache.

A machine's roofs do not distinguish operators, but on a CPU operators differ: with the same reads and writes, `var`
takes sixty times as long as `add`, and `tanh` thirty times. A piece has the operator's own dtypes, strides and last
sizes, and fewer rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autofuse.profiling.live.listed_operators import ListedOperator
from autofuse.torch_private import pytree

ELEMENTS = 2**17  # elements per thread of a piece's largest tensor: half a MiB in float32
_NEW = 48 * 2**20  # bytes, more than malloc keeps for reuse
_REPEATS, _ENOUGH = 12, 10e-3  # runs of a piece, and the seconds after which fewer are enough


class OperatorRates:
    """Measures operators and caches the results for the process, so that equal operators get equal seconds."""

    def __init__(self) -> None:
        self._known: dict[Hashable, float | None] = {}

    def seconds(self, operator: ListedOperator) -> float | None:
        """Return the predicted seconds of an operator, from the measured time of a small piece of it.

        The result is None if no piece of it runs on this machine.
        """
        key = _key(operator)
        if key not in self._known:
            self._known[key] = _per_element(operator)
        rate = self._known[key]
        return None if rate is None else rate * elements(operator)


@cache
def seconds_of_new_bytes() -> float:
    """Return the extra seconds for a byte of newly mapped memory: a page fault for each page."""
    fresh = torch.empty(_NEW // 4)  # the pages of a new tensor are not mapped yet
    first = _thread_seconds(fresh.zero_)
    again = min(_thread_seconds(fresh.zero_) for _ in range(3))
    return max(0.0, first - again) / _NEW


def _thread_seconds(run: Callable[[], object]) -> float:
    """Return the CPU seconds of the calling thread, without waits for the CPU."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


def elements(operator: ListedOperator) -> int:
    """Return the number of elements of the largest tensor that an operator reads or writes; repeated ones count."""
    return max((x.numel() for x in (*operator.operands, *operator.results)), default=0)


def _key(operator: ListedOperator) -> Hashable:
    leaves, spec = pytree.tree_flatten((operator.args, dict(operator.kwargs)))
    cut = _RowCutter(operator)
    return (
        operator.function, torch.get_num_threads(), repr(spec),
        tuple((cut.shape(x), x.stride()[-2:], x.dtype) if isinstance(x, Tensor) else repr(x) for x in leaves),
    )  # fmt: skip


def _per_element(operator: ListedOperator) -> float | None:
    """Return the seconds per element of a warm run, the fastest of several: other programs only slow it down."""
    cut = _RowCutter(operator)
    try:
        args, kwargs = pytree.tree_map(cut.real_piece, (operator.args, dict(operator.kwargs)))
        run = _without_grad(lambda: operator.function(*args, **kwargs))
        results = [r for r in pytree.tree_leaves(run()) if isinstance(r, Tensor)]
        inputs = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        count = max((x.numel() for x in (*inputs, *results)), default=0)
        taken: list[float] = []
        while len(taken) < 3 or len(taken) < _REPEATS and sum(taken) < _ENOUGH:
            taken.append(_thread_seconds(run))
        return min(taken) / count if count else None
    except Exception:  # an operator may reject made-up numbers or cut sizes
        return None


def _without_grad(run: Callable[[], Any]) -> Callable[[], Any]:
    def without_grad() -> Any:
        with torch.no_grad():
            return run()

    return without_grad


class _RowCutter:
    """Cuts rows: the first sizes of an operator's tensors, as far as needed. Equal sizes are cut to equal sizes."""

    def __init__(self, operator: ListedOperator) -> None:
        tensors = [x for x in (*operator.operands, *operator.results) if x.dim()]
        largest = max(tensors, key=Tensor.numel, default=None)
        self.sizes: tuple[int, ...] = () if largest is None else tuple(largest.shape)
        self.cut = list(self.sizes)
        keep = 2 if any(x.dim() > 2 for x in tensors) and _is_product(operator) else 1
        limit = ELEMENTS * torch.get_num_threads()
        for dim in range(len(self.sizes) - keep):
            rest = math.prod(self.cut)
            if rest > limit:
                self.cut[dim] = max(1, math.ceil(self.cut[dim] * limit / rest))

    def shape(self, x: Tensor) -> tuple[int, ...]:
        """Return the cut shape of a tensor."""
        sizes = list(x.shape)
        if len(sizes) == 1 and len(self.sizes) != 1:
            return tuple(sizes)  # a weight, which has no rows
        for dim in range(min(len(sizes), len(self.sizes))):
            if sizes[dim] == self.sizes[dim]:
                sizes[dim] = self.cut[dim]
        return tuple(sizes)

    def real_piece(self, x: Any) -> Any:
        """Return a real tensor for a fake one's piece: positive numbers, zero for integers, False for masks."""
        if not isinstance(x, Tensor):
            return x
        shape = self.shape(x)
        sizes = [1 if stride == 0 else size for size, stride in zip(shape, x.stride(), strict=True)]
        made = torch.empty_strided(sizes, _packed_strides(sizes, x.stride()), dtype=x.dtype, device=x.device)
        if made.is_floating_point() or made.is_complex():
            made.uniform_(0.5, 1.5)  # not near zero, where roots and quotients are slow
        else:
            made.zero_()
        return made.expand(shape)


def _packed_strides(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return strides in the same order, without the gaps that cutting leaves."""
    packed, step = [0] * len(sizes), 1
    for dim in sorted(range(len(sizes)), key=lambda d: (strides[d], -d)):
        packed[dim] = step
        step *= sizes[dim]
    return packed


def _is_product(operator: ListedOperator) -> bool:
    """Whether an operator's last two sizes belong together: matrices and attention."""
    return any(word in operator.name for word in ("bmm", "attention", "conv"))
