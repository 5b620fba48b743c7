"""Counts what steps compute and move, module by module: FLOPs, bytes, operators. No clock: counting slows a step.

Knows operators' costs (formulas.py) and whose they are (operator_owner.py); must not know how fast a machine is. Hooks
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import Tensor

from autofuse.profiling.live.formulas import OperatorCost, can_count, cost, is_opaque
from autofuse.profiling.live.module_calls import ModuleNames, around_calls
from autofuse.profiling.live.operator_owner import Owner, Running, gradients_wanted, is_an_optimizers
from autofuse.profiling.trace.work import Own, Phase
from autofuse.results.profile import OPTIMIZER, Flops, Work
from autofuse.torch_private import HigherOrderOperator, TorchDispatchMode

Key = tuple[str, Phase]


# What tensors of odd kinds ask of themselves, as torch.utils.flop_counter leaves it to them.
_QUESTIONS = frozenset(
    "size sym_size stride sym_stride numel sym_numel dim storage_offset sym_storage_offset is_contiguous "
    "sym_is_contiguous is_strides_like_format is_non_overlapping_and_dense".split()
)


class Speeds(Protocol):
    """How long an operator takes at best."""

    def seconds(self, flops: int, bytes: int, dtype: str) -> float | None:
        """For so many FLOPs in that dtype and so many bytes; None where the machine's roofs are not known."""


class Counting:
    """Around one or more steps; afterwards `.flops` and `.works(roofs)` tell what one of them cost on average.

    Compiled code is opaque: in the block torch.compile's functions run as the Python that they were made of. A module
    that autofuse optimized runs its fused operations, each counted as one operator.
    """

    def __init__(self, names: ModuleNames, steps: int = 1) -> None:
        self.names, self.steps = names, steps
        self._costs: Counter[tuple[Owner, bool, OperatorCost]] = Counter()  # with whether the model asks for it
        self._opaque: Counter[str] = Counter()
        self._stack = ExitStack()

    def __enter__(self) -> Counting:
        running = Running()
        with ExitStack() as stack:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(around_calls(self.names, running.called))
            stack.enter_context(_Counter(running, self._costs, self._opaque))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def works(self, roofs: Speeds | None = None) -> Own:
        """By module name and phase, without the modules that it calls; seconds 0, ideal seconds where there are roofs.

        What runs in no module is OUTSIDE's, what an optimizer runs OPTIMIZER's.
        """
        totals: dict[Key, Work] = {}
        for (whose, _, one), count in self._costs.items():
            ideal = None if roofs is None else roofs.seconds(one.flops, one.bytes, one.dtype)
            work = Work(0.0, one.flops * count, one.bytes * count, count, None if ideal is None else ideal * count)
            key = whose.fqn, whose.phase
            totals[key] = totals[key] + work if key in totals else work
        return {key: self._of_one_step(work) for key, work in totals.items()}

    @property
    def flops(self) -> Flops:
        """Of one step on this rank. `model` leaves out recomputed forwards, what kernels compute again, and products
        of an optimizer."""
        if not can_count():
            return Flops(reason="torch.utils.flop_counter does not load here, so nothing tells an operator's FLOPs.")
        hardware = sum(one.flops * count for (_, _, one), count in self._costs.items())
        model = sum(one.model_flops * count for (_, asked, one), count in self._costs.items() if asked)
        return Flops(round(model / self.steps), round(hardware / self.steps), self._basis(), dtype=self._dtype())

    @property
    def by_dtype(self) -> Mapping[str, int]:
        """FLOPs executed in a step by dtype, the most first."""
        found: Counter[str] = Counter()
        for (_, _, one), count in self._costs.items():
            if one.flops:
                found[one.dtype] += one.flops * count
        return {dtype: round(flops / self.steps) for dtype, flops in found.most_common()}

    def _dtype(self) -> str:
        return next(iter(self.by_dtype), "")

    def _basis(self) -> str:
        steps = "one step" if self.steps == 1 else f"{self.steps} steps"
        basis = f"every operator of {steps}, by torch.utils.flop_counter's formulas and our own"
        if not self._opaque:
            return basis
        names = ", ".join(sorted(self._opaque))
        return f"{basis}; without a formula, and so counted as none: {names}"

    def _of_one_step(self, work: Work) -> Work:
        n = self.steps
        ideal = None if work.ideal_seconds is None else work.ideal_seconds / n
        return Work(0.0, round(work.flops / n), round(work.bytes / n), round(work.operators / n), ideal)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator that is dispatched, in the backward's threads too."""

    supports_higher_order_operators = True

    def __init__(self, running: Running, costs: Counter[Any], opaque: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running, self.costs, self.opaque = running, costs, opaque

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented  # a wrapper, as of parts of a tensor: what it makes of the call is counted
        if not isinstance(function, HigherOrderOperator):
            if function.namespace == "prim" or function._opname in _QUESTIONS:
                return NotImplemented
            if not any(isinstance(a, Tensor) and a.is_nested for a in args):  # which have kernels for composites
                with self:  # under inference_mode composites arrive whole
                    made = function.decompose(*args, **kwargs)
                if made is not NotImplemented:
                    return made
        result = function(*args, **kwargs)
        self._count(function, args, kwargs, result)
        return result

    def _count(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = str(getattr(function, "_overloadpacket", function)).replace(".", "::")
        try:
            one = cost(function, args, kwargs, result, gradients_wanted())
        except Exception:  # a tensor of a kind that no formula knows must not end somebody's step
            self.opaque[name] += 1
            return
        if one is None:
            return
        whose = self.running.now()
        stepping = is_an_optimizers(whose)
        asked = not whose.again and not stepping
        whose = whose._replace(fqn=OPTIMIZER) if stepping else whose
        self.costs[whose, asked, one] += 1
        if is_opaque(function):
            self.opaque[name] += 1
