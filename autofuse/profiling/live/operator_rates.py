"""What an operator takes for one element here, measured on a small piece of it that stays in a cache.

The roofs of a machine do not tell operators apart, and on a CPU they are not alike: of operators that read and write
the same, `var` takes sixty times as long as `add`, `tanh` thirty times. A piece has the operator's own dtypes, strides
and last sizes, and fewer rows. Knows operators on real numbers; must not know where they stood.
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

ELEMENTS = 2**17  # of the largest tensor of a piece and each thread: half a MiB in float32
_NEW = 48 * 2**20  # bytes, more than malloc keeps for later
_REPEATS, _ENOUGH = 12, 10e-3  # runs of a piece, and the seconds after which fewer are enough


class Pieces:
    """Remembers what was measured in this process; `seconds` of equal questions are equal."""

    def __init__(self) -> None:
        self._known: dict[Hashable, float | None] = {}

    def seconds(self, operator: ListedOperator) -> float | None:
        """Of the whole operator, were it as fast for each element as its piece; None where no piece of it runs here."""
        key = _key(operator)
        if key not in self._known:
            self._known[key] = _per_element(operator)
        rate = self._known[key]
        return None if rate is None else rate * elements(operator)


@cache
def seconds_of_new_bytes() -> float:
    """What a byte of memory that the process has to ask for takes more than one that it has: a fault for each page."""
    fresh = torch.empty(_NEW // 4)  # not touched so far
    first = _clocked(fresh.zero_)
    again = min(_clocked(fresh.zero_) for _ in range(3))
    return max(0.0, first - again) / _NEW


def _clocked(run: Callable[[], object]) -> float:
    """Seconds of the calling thread, which takes its part in what several do: waiting for the CPU is not in them."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


def elements(operator: ListedOperator) -> int:
    """Of the largest tensor that an operator reads or writes; tensors that are repeated count as often."""
    return max((x.numel() for x in (*operator.operands, *operator.results)), default=0)


def _key(operator: ListedOperator) -> Hashable:
    leaves, spec = pytree.tree_flatten((operator.args, dict(operator.kwargs)))
    cut = _Cut(operator)
    return (
        operator.function, torch.get_num_threads(), repr(spec),
        tuple((cut.shape(x), x.stride()[-2:], x.dtype) if isinstance(x, Tensor) else repr(x) for x in leaves),
    )  # fmt: skip


def _per_element(operator: ListedOperator) -> float | None:
    """Seconds an element of a warm run, the quickest of several: what others run meanwhile only adds."""
    cut = _Cut(operator)
    try:
        args, kwargs = pytree.tree_map(cut.made, (operator.args, dict(operator.kwargs)))
        run = _alone(lambda: operator.function(*args, **kwargs))
        results = [r for r in pytree.tree_leaves(run()) if isinstance(r, Tensor)]
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        count = max((x.numel() for x in (*given, *results)), default=0)
        taken: list[float] = []
        while len(taken) < 3 or len(taken) < _REPEATS and sum(taken) < _ENOUGH:
            taken.append(_clocked(run))
        return min(taken) / count if count else None
    except Exception:  # numbers that are made up, or sizes that were cut, may not be what an operator can take
        return None


def _alone(run: Callable[[], Any]) -> Callable[[], Any]:
    def alone() -> Any:
        with torch.no_grad():
            return run()

    return alone


class _Cut:
    """Fewer rows: the first sizes of an operator's tensors, cut as far as is needed, those of equal size alike."""

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
        """What a tensor's shape becomes."""
        sizes = list(x.shape)
        if len(sizes) == 1 and len(self.sizes) != 1:
            return tuple(sizes)  # a weight, of which there are no rows
        for dim in range(min(len(sizes), len(self.sizes))):
            if sizes[dim] == self.sizes[dim]:
                sizes[dim] = self.cut[dim]
        return tuple(sizes)

    def made(self, x: Any) -> Any:
        """A real tensor in the form of a fake one's piece: positive numbers, zero for integers, False for masks."""
        if not isinstance(x, Tensor):
            return x
        shape = self.shape(x)
        sizes = [1 if stride == 0 else size for size, stride in zip(shape, x.stride(), strict=True)]
        made = torch.empty_strided(sizes, _packed(sizes, x.stride()), dtype=x.dtype, device=x.device)
        if made.is_floating_point() or made.is_complex():
            made.uniform_(0.5, 1.5)  # off zero, where roots and quotients take a slow way
        else:
            made.zero_()
        return made.expand(shape)


def _packed(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Strides in the same order, without the gaps that cutting leaves."""
    packed, step = [0] * len(sizes), 1
    for dim in sorted(range(len(sizes)), key=lambda d: (strides[d], -d)):
        packed[dim] = step
        step *= sizes[dim]
    return packed


def _is_product(operator: ListedOperator) -> bool:
    """Whether an operator's last two sizes belong together: matrices, and attention."""
    return any(word in operator.name for word in ("bmm", "attention", "conv"))
