"""What operators would take, from their FLOPs and bytes at the roofs of a machine and what each takes for an element.

    t = launch + max(FLOPs / peak, bytes / bandwidth, elements x what one takes) + new pages / first touch

A product goes by FLOPs. Anything else on a CPU goes by a piece of itself that is measured (pieces.py), for vectorised
and other loops are a hundredfold apart; on a GPU by its bytes, and by its special functions where it has any. What
fits into a CPU's last cache is not held to the memory's bandwidth. Pages are new where memory grows (`new_pages`).
Knows operators on fakes and a machine's numbers; must not know modules or rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from autofuse.profiling.listing import Operator
from autofuse.profiling.pieces import Pieces, elements
from autofuse.report.profile import Work

MAPPED = 32 * 2**20  # bytes: larger tensors get new pages from glibc's malloc (DEFAULT_MMAP_THRESHOLD_MAX, 64 bit)
_SPECIAL = ("exp", "tanh", "erf", "sigmoid", "softmax", "gelu", "silu", "sqrt", "log", "sin", "cos", "pow", "mish")
_BATCHED = ("bmm", "attention")  # many small products: how fast they are depends on their sizes


class Machine(Protocol):
    """The roofs that the model asks for; profiling.roofs measures them."""

    @property
    def bytes(self) -> float: ...  # a second, streamed
    @property
    def special(self) -> float: ...  # transcendental functions a second
    @property
    def launch(self) -> float: ...  # seconds that the smallest operator takes
    def flops(self, dtype: torch.dtype) -> float: ...  # a second, of matrix products


class Costs:
    """The model on one machine. first_touch: bytes a second of memory that is touched for the first time."""

    def __init__(self, machine: Machine, first_touch: float | None = None, pieces: Pieces | None = None) -> None:
        self.machine, self.first_touch = machine, first_touch
        self._pieces = pieces or Pieces()
        self._cache = last_cache()

    def of(self, operators: Iterable[Operator]) -> Work:
        """All of them, one after the other, on memory that was touched before; FLOPs and bytes too."""
        return sum(map(self.one, operators), Work())

    def one(self, operator: Operator) -> Work:
        """A single operator, launched by itself."""
        cost = operator.cost
        streamed = max(self._moving(operator.device, cost.bytes), self._computing(operator))
        return Work(self.machine.launch + streamed, cost.flops, cost.bytes, 1)

    def in_one_loop(self, operators: Sequence[Operator]) -> Work:
        """What a kernel of our own makes of them: products by themselves, and between these one loop in each phase,
        which reads and writes only what no other operator of the loop does, and computes every function as before.
        """
        products = [o for o in operators if o.cost.flops]
        work = self.of(products)
        for phase in ("forward", "backward"):
            loop = [o for o in operators if o.phase == phase and not o.cost.flops]
            work += self._loop(loop, products) if loop else Work()
        return work

    def new_pages(self, operators: Iterable[Operator]) -> float:
        """Seconds for pages that a process on a CPU has to ask for in every step: what a forward keeps makes its memory
        grow, which shrinks again in the backward; and tensors above MAPPED are mapped and unmapped one by one.
        """
        if self.first_touch is None:
            return 0.0
        mapped = (r.untyped_storage().nbytes() for o in operators if o.device == "cpu" for r in _made(o))
        large = sum(size for size in mapped if size > MAPPED)
        kept = sum(o.kept for o in operators if o.device == "cpu" and o.kept <= MAPPED)
        return (large + kept) / self.first_touch

    def _loop(self, loop: Sequence[Operator], products: Sequence[Operator]) -> Work:
        made = {id(r) for o in loop for r in o.results}
        read = {id(x): x for o in loop for x in o.operands if id(x) not in made}
        used = {id(x) for o in products for x in o.operands} | {id(r) for r in loop[-1].results}
        written = {id(r): r for o in loop for r in o.results if id(r) in used}
        moved = sum(x.numel() * x.element_size() for x in (*read.values(), *written.values()))
        functions = sum(self._computing(o) for o in loop if _is_special(o))
        seconds = max(self._moving(loop[0].device, moved), functions)
        return Work(self.machine.launch + seconds, 0, moved, 1)

    def _moving(self, device: str, count: int) -> float:
        in_cache = device == "cpu" and count < self._cache
        return 0.0 if in_cache else count / self.machine.bytes

    def _computing(self, operator: Operator) -> float:
        """Seconds of computing, were memory no limit."""
        flops = operator.cost.flops
        batched = any(word in operator.name for word in _BATCHED)
        if operator.device == "cpu" and (batched or not flops):
            measured = self._pieces.seconds(operator)
            if measured is not None:
                return measured
            return operator.cost.bytes / self.machine.bytes
        if flops:
            return flops / self.machine.flops(getattr(torch, operator.cost.dtype, torch.float32))
        return elements(operator) / self.machine.special if _is_special(operator) else 0.0


def last_cache() -> int:
    """Bytes of the CPU's last cache, as far as one process may count on it; 8 MiB where nobody tells."""
    try:
        size = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        size = 0
    return min(size, MAPPED) if size > 0 else 8 * 2**20


def _made(operator: Operator) -> tuple[torch.Tensor, ...]:
    """Results in new memory."""
    return () if operator.function._opname.endswith("_") else operator.results


def _is_special(operator: Operator) -> bool:
    return any(word in operator.name for word in _SPECIAL)
