"""What operators would take, from their FLOPs and bytes at the roofs of a machine and what each takes for an element.

    t = launch + max(computing, moving) + min(computing, moving) x (1 - OVERLAP) + new pages x what one takes
    computing = FLOPs / peak, or elements x what one takes; moving = bytes / bandwidth

A product goes by FLOPs. Anything else on a CPU goes by a piece of itself that is measured (operator_rates.py), for
vectorised and other loops are a hundredfold apart; on a GPU by its bytes, and by its special functions where it has
any. Knows operators on fakes and a machine's numbers; must not know modules or rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Protocol

from autofuse.ir.vocabulary import EXPONENTIAL
from autofuse.profiling.live.listed_operators import ListedOperator
from autofuse.profiling.live.operator_rates import Pieces, elements, seconds_of_new_bytes
from autofuse.results.profile import Work

OVERLAP = 0.5  # of the shorter part hides behind the longer on a CPU, as measured for products, masks and softmax
BEYOND = 2**62  # bytes that no cache holds
MAPPED = 32 * 2**20  # bytes: larger tensors have new pages from glibc's malloc (DEFAULT_MMAP_THRESHOLD_MAX, 64 bit)
_SPECIAL = ("exp", "erf", "softmax", "sqrt", "log", "sin", "cos", "pow", *EXPONENTIAL)
_BATCHED = ("bmm", "attention")  # many small products: how fast they are depends on their sizes


class Machine(Protocol):
    """The roofs that the model asks for: profiling.roofs.Roofs has them."""

    launch: float  # seconds that the smallest operator takes
    special: float  # exponentials a second

    def flops(self, dtype: str) -> float:
        """FLOP/s of products of matrices."""

    def bandwidth(self, touched: int) -> float:
        """Bytes a second at most for an operator that touches so many."""


class Costs:
    """The model on one machine."""

    def __init__(self, machine: Machine, pieces: Pieces | None = None) -> None:
        self.machine = machine
        self._pieces = pieces or Pieces()

    def of(self, operators: Iterable[ListedOperator]) -> Work:
        """All of them, one after the other; FLOPs and bytes too."""
        return sum(map(self.one, operators), Work())

    def one(self, operator: ListedOperator) -> Work:
        """A single operator, launched by itself."""
        cost = operator.cost
        moving, computing = self._moving(cost.bytes), self._computing(operator)
        hidden = OVERLAP if operator.device == "cpu" else 1.0
        busy = max(moving, computing) + (1 - hidden) * min(moving, computing)
        return Work(self.machine.launch + busy + self._mapping(operator), cost.flops, cost.bytes, 1)

    def in_one_loop(self, operators: Sequence[ListedOperator]) -> Work:
        """What a kernel of our own makes of them: products by themselves, and between these one loop in each phase,
        which reads and writes only what no other operator of the loop does, and computes every function as before.
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
        return Work(self.machine.launch + max(self._moving(moved), functions), 0, moved, 1)

    def _moving(self, count: int) -> float:
        """In a step other operators have used the caches meanwhile: only what fits into a core's own is found there."""
        return count / self.machine.bandwidth(count if count <= own_cache() else BEYOND)

    def _computing(self, operator: ListedOperator) -> float:
        """Seconds of computing, were memory no limit."""
        if operator.device == "cpu" and not is_product(operator):
            return self._pieces.seconds(operator) or 0.0
        if operator.cost.flops:
            return operator.cost.flops / self.machine.flops(operator.cost.dtype)
        return elements(operator) / self.machine.special if _is_special(operator) else 0.0

    def _mapping(self, operator: ListedOperator) -> float:
        """Seconds for pages that a process on a CPU has to ask for: large tensors are mapped and unmapped each."""
        if operator.device != "cpu" or operator.function._opname.endswith("_"):
            return 0.0
        sizes = [r.untyped_storage().nbytes() for r in operator.results]
        large = sum(size for size in sizes if size > MAPPED)
        return large * seconds_of_new_bytes() if large else 0.0


@cache
def own_cache() -> int:
    """Bytes of a core's own, second cache; 1 MiB where nobody tells."""
    try:
        size = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (ValueError, OSError):
        size = 0
    return size if size > 0 else 2**20


def is_product(operator: ListedOperator) -> bool:
    """Whether an operator is one large product of matrices, which goes by the machine's FLOP/s."""
    return operator.cost.flops > 0 and not any(word in operator.name for word in _BATCHED)


def _is_special(operator: ListedOperator) -> bool:
    return any(word in operator.name for word in _SPECIAL)
