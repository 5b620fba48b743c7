"""What operators would take, from their FLOPs and bytes at the roofs of a machine and what each takes for an element.

    t = launch + max(FLOPs / peak, bytes / bandwidth, elements x what one takes) + fresh bytes / first touch

A product goes by FLOPs. Anything else on a CPU goes by a piece of itself that is measured (pieces.py), for vectorised
and other loops are a hundredfold apart; on a GPU by its bytes, and by its special functions where it has any. Fresh
bytes are those of results so large that malloc asks the kernel for pages, which faults once for each of them.
Knows operators on fakes and a machine's numbers; must not know modules or rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from autofuse.profiling.listing import Operator
from autofuse.profiling.pieces import Pieces, elements

MAPPED = 32 * 2**20  # bytes: glibc's malloc gives larger tensors fresh pages (DEFAULT_MMAP_THRESHOLD_MAX, 64 bit)
_SPECIAL = ("exp", "tanh", "erf", "sigmoid", "softmax", "gelu", "silu", "sqrt", "log", "sin", "cos", "pow", "mish")
_IN_PLACE = ("copy_", "zero_", "fill_")


class Machine(Protocol):
    """The roofs that the model asks for; profiling.roofs measures them."""

    @property
    def bytes(self) -> float: ...  # a second, streamed
    @property
    def special(self) -> float: ...  # transcendental functions a second
    @property
    def launch(self) -> float: ...  # seconds that the smallest operator takes
    def flops(self, dtype: torch.dtype) -> float: ...  # a second, of matrix products


@dataclass(frozen=True)
class Cost:
    """What one or several operators cost: seconds, FLOPs of products, bytes read and written."""

    seconds: float = 0.0
    flops: int = 0
    bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.flops + other.flops, self.bytes + other.bytes)


class Costs:
    """The model on one machine. touched: bytes a second of memory that was never touched before, None for no penalty."""

    def __init__(self, machine: Machine, touched: float | None = None, pieces: Pieces | None = None) -> None:
        self.machine, self.touched = machine, touched
        self._pieces = pieces or Pieces()

    def of(self, operators: Iterable[Operator]) -> Cost:
        """All of them, one after the other."""
        return sum(map(self.one, operators), Cost())

    def one(self, operator: Operator) -> Cost:
        """A single operator, launched by itself."""
        flops, moved = flops_of(operator), bytes_of(operator)
        streamed = max(moved / self.machine.bytes, self._busy(operator, flops))
        return Cost(self.machine.launch + streamed + self._faults(operator), flops, moved)

    def in_one_loop(self, operators: Sequence[Operator]) -> Cost:
        """What a compiler makes of them: products by themselves, and between these one loop in each phase, which reads
        and writes only what no other operator of the loop does; functions are computed as often as before.
        """
        products = [o for o in operators if flops_of(o)]
        cost = self.of(products)
        for phase in ("forward", "backward"):
            loop = [o for o in operators if o.phase == phase and not flops_of(o)]
            if loop:
                cost += self._loop(loop, products)
        return cost

    def _loop(self, loop: Sequence[Operator], products: Sequence[Operator]) -> Cost:
        made = {id(r) for o in loop for r in o.results}
        read = {id(x): x for o in loop for x in o.operands if id(x) not in made}
        used = {id(x) for o in products for x in o.operands} | {id(r) for r in loop[-1].results}
        written = {id(r): r for o in loop for r in o.results if id(r) in used}
        moved = sum(_stored(x) for x in (*read.values(), *written.values()))
        functions = sum(self._beyond_streaming(o) for o in loop)
        return Cost(self.machine.launch + max(moved / self.machine.bytes, functions), 0, moved)

    def _beyond_streaming(self, operator: Operator) -> float:
        """What a function costs in a loop that moves the data anyway."""
        return self._busy(operator, 0) if _is_special(operator) else 0.0

    def _busy(self, operator: Operator, flops: int) -> float:
        """Seconds of computing, were memory no limit."""
        if flops and not _is_batched(operator):
            return flops / self.machine.flops(_dtype(operator))
        if _device(operator) == "cpu" and (measured := self._pieces.seconds(operator)) is not None:
            return max(0.0, measured)
        computed = flops / self.machine.flops(_dtype(operator)) if flops else 0.0
        return max(computed, elements(operator) / self.machine.special if _is_special(operator) else 0.0)

    def _faults(self, operator: Operator) -> float:
        if self.touched is None or operator.function._opname.endswith("_"):
            return 0.0
        return sum(_stored(r) for r in operator.results if _stored(r) > MAPPED) / self.touched


def bytes_of(operator: Operator) -> int:
    """What an operator reads and writes, each tensor once and as it is stored."""
    tensors = {id(x): x for x in (*operator.operands, *operator.results)}
    return sum(map(_stored, tensors.values()))


def flops_of(operator: Operator) -> int:
    """Of products, as torch's counter has them; 0 for anything else."""
    count: Callable[..., Any] | None = flop_registry.get(operator.function._overloadpacket)
    if count is None:
        return 0
    out = operator.results[0] if len(operator.results) == 1 else operator.results
    return int(count(*operator.args, **operator.kwargs, out_val=out))


def _stored(x: Tensor) -> int:
    """Bytes, without repeating what is expanded."""
    count = 1
    for size, stride in zip(x.shape, x.stride(), strict=True):
        count *= size if stride else 1
    return count * x.element_size()


def _dtype(operator: Operator) -> torch.dtype:
    return next((x.dtype for x in operator.operands if x.is_floating_point()), torch.float32)


def _device(operator: Operator) -> str:
    return next((x.device.type for x in (*operator.results, *operator.operands)), "cpu")


def _is_batched(operator: Operator) -> bool:
    """Whether a product is one of many small ones: how fast they are depends on their sizes, so a piece is measured."""
    return "bmm" in operator.name or "attention" in operator.name


def _is_special(operator: Operator) -> bool:
    return any(word in operator.name for word in _SPECIAL)
