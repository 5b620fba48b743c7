"""Models what operators take: from FLOPs and bytes at the roofs of a machine, and from measured seconds per element.

    t = launch + max(computing, moving) + min(computing, moving) x (1 - OVERLAP) + new pages x seconds per page
    computing = FLOPs / peak, or elements x seconds per element; moving = bytes / bandwidth

Matrix products depend on FLOPs. The speed of other operators on a CPU is measured on a small piece of them
(operator_rates.py), because vectorised and other loops differ a hundredfold. On a GPU they depend on bytes, and on
special functions if they compute any.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Protocol

from autofuse.ir.vocabulary import EXPONENTIAL
from autofuse.profiling.live.listed_operators import ListedOperator
from autofuse.profiling.live.operator_rates import OperatorRates, elements, seconds_of_new_bytes
from autofuse.results.profile import Work

OVERLAP = 0.5  # hidden fraction of the shorter part on a CPU, as measured for products, masks and softmax
BEYOND = 2**62  # bytes that no cache holds
MAPPED = 32 * 2**20  # bytes: glibc's malloc maps new pages for larger tensors (DEFAULT_MMAP_THRESHOLD_MAX, 64 bit)
_SPECIAL = ("exp", "erf", "softmax", "sqrt", "log", "sin", "cos", "pow", *EXPONENTIAL)
_BATCHED = ("bmm", "attention")  # many small products, whose speed depends on their sizes


class Machine(Protocol):
    """The roofs that the model needs. profiling.roofs.Roofs has them."""

    launch: float  # seconds that the smallest operator takes
    special: float  # exponentials a second

    def flops(self, dtype: str) -> float:
        """Return the FLOP/s of matrix products."""

    def bandwidth(self, touched: int) -> float:
        """Return the most bytes per second for an operator that touches `touched` bytes."""


class Costs:
    """The model of one machine."""

    def __init__(self, machine: Machine, pieces: OperatorRates | None = None) -> None:
        self.machine = machine
        self._pieces = pieces or OperatorRates()

    def of(self, operators: Iterable[ListedOperator]) -> Work:
        """Return the work of all operators, one after the other, with FLOPs and bytes."""
        return sum(map(self.one, operators), Work())

    def one(self, operator: ListedOperator) -> Work:
        """Return the work of a single operator, launched by itself."""
        cost = operator.cost
        moving, computing = self._moving_seconds(cost.bytes), self._computing_seconds(operator)
        hidden = OVERLAP if operator.device == "cpu" else 1.0
        busy = max(moving, computing) + (1 - hidden) * min(moving, computing)
        return Work(self.machine.launch + busy + self._mapping_seconds(operator), cost.flops, cost.bytes, 1)

    def in_one_loop(self, operators: Sequence[ListedOperator]) -> Work:
        """Return the work of a fused kernel that computes these operators.

        Products stay separate. Between them, there is one loop in each phase. It reads and writes only what no other
        operator of the loop does, and computes every function as before.
        """
        products = [o for o in operators if o.cost.flops]
        work = self.of(products)
        for phase in ("forward", "backward"):
            loop = [o for o in operators if o.phase == phase and not o.cost.flops]
            work += self._loop(loop, products) if loop else Work()
        return work

    def _loop(self, loop: Sequence[ListedOperator], products: Sequence[ListedOperator]) -> Work:
        made = {id(r) for o in loop for r in o.results}
        read = {id(x): x for o in loop for x in o.operands if id(x) not in made}
        used = {id(x) for o in products for x in o.operands} | {id(r) for r in loop[-1].results}
        written = {id(r): r for o in loop for r in o.results if id(r) in used}
        moved = sum(x.numel() * x.element_size() for x in (*read.values(), *written.values()))
        functions = sum(elements(o) for o in loop if _is_special(o)) / self.machine.special
        return Work(self.machine.launch + max(self._moving_seconds(moved), functions), 0, moved, 1)

    def _moving_seconds(self, count: int) -> float:
        """Return the seconds of moving bytes.

        In a step, other operators use the caches meanwhile, so only data that fits into a core's own cache is found
        there.
        """
        return count / self.machine.bandwidth(count if count <= own_cache() else BEYOND)

    def _computing_seconds(self, operator: ListedOperator) -> float:
        """Return the seconds of computing, if memory were no limit."""
        if operator.device == "cpu" and not is_product(operator):
            return self._pieces.seconds(operator) or 0.0
        if operator.cost.flops:
            return operator.cost.flops / self.machine.flops(operator.cost.dtype)
        return elements(operator) / self.machine.special if _is_special(operator) else 0.0

    def _mapping_seconds(self, operator: ListedOperator) -> float:
        """Return the seconds for new pages on a CPU: large tensors are mapped and unmapped each time."""
        if operator.device != "cpu" or operator.function._opname.endswith("_"):
            return 0.0
        sizes = [r.untyped_storage().nbytes() for r in operator.results]
        large = sum(size for size in sizes if size > MAPPED)
        return large * seconds_of_new_bytes() if large else 0.0


@cache
def own_cache() -> int:
    """Return the bytes of a core's own (second level) cache; 1 MiB if unknown."""
    try:
        size = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (ValueError, OSError):
        size = 0
    return size if size > 0 else 2**20


def is_product(operator: ListedOperator) -> bool:
    """Whether an operator is one large matrix product, which depends on the machine's FLOP/s."""
    return operator.cost.flops > 0 and not any(word in operator.name for word in _BATCHED)


def _is_special(operator: ListedOperator) -> bool:
    return any(word in operator.name for word in _SPECIAL)
