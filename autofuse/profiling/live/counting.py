"""Counts FLOPs, bytes and operators of steps by module. It uses no clock, because counting slows a step down.

Costs come from formulas.py, owners from operator_owner.py. It installs no hooks.
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
from autofuse.profiling.live.operator_owner import Owner, Running, gradients_wanted, is_optimizer_step
from autofuse.profiling.trace.work import Own, Phase
from autofuse.results.profile import OPTIMIZER, Flops, Work
from autofuse.torch_private import HigherOrderOperator, TorchDispatchMode

Key = tuple[str, Phase]


# Queries that tensor subclasses answer themselves, as in torch.utils.flop_counter.
_QUERIES = frozenset(
    "size sym_size stride sym_stride numel sym_numel dim storage_offset sym_storage_offset is_contiguous "
    "sym_is_contiguous is_strides_like_format is_non_overlapping_and_dense".split()
)


class Speeds(Protocol):
    """A model of how long an operator takes at best."""

    def seconds(self, flops: int, bytes: int, dtype: str) -> float | None:
        """Return the seconds for these FLOPs in this dtype and these bytes; None if the machine's roofs are unknown."""


class Counting:
    """Counts in a block around steps. Afterwards, `.flops` and `.works(roofs)` have the average of one step.

    Compiled code is opaque, so in the block functions of torch.compile run as ordinary Python. A module that autofuse
    optimized runs its fused operations, and each counts as one operator.
    """

    def __init__(self, names: ModuleNames, steps: int = 1) -> None:
        self.names, self.steps = names, steps
        # Keys have the owner, whether the model itself asks for the operator, and the cost.
        self._costs: Counter[tuple[Owner, bool, OperatorCost]] = Counter()
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
        """Return the work by module name and phase, without called modules. Seconds are 0.

        There are ideal seconds if `roofs` is given. Work in no module belongs to OUTSIDE, work of an optimizer to
        OPTIMIZER.
        """
        totals: dict[Key, Work] = {}
        for (owner, _, one), count in self._costs.items():
            ideal = None if roofs is None else roofs.seconds(one.flops, one.bytes, one.dtype)
            work = Work(0.0, one.flops * count, one.bytes * count, count, None if ideal is None else ideal * count)
            key = owner.fqn, owner.phase
            totals[key] = totals[key] + work if key in totals else work
        return {key: self._of_one_step(work) for key, work in totals.items()}

    @property
    def flops(self) -> Flops:
        """FLOPs of one step on this rank. `model` excludes recomputation (forwards, in kernels) and optimizers."""
        if not can_count():
            return Flops(reason="torch.utils.flop_counter does not load here, so operators' FLOPs are unknown.")
        hardware = sum(one.flops * count for (_, _, one), count in self._costs.items())
        model = sum(one.model_flops * count for (_, by_model, one), count in self._costs.items() if by_model)
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
        return f"{basis}; without a formula, so counted as 0: {names}"

    def _of_one_step(self, work: Work) -> Work:
        n = self.steps
        ideal = None if work.ideal_seconds is None else work.ideal_seconds / n
        return Work(0.0, round(work.flops / n), round(work.bytes / n), round(work.operators / n), ideal)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator that is dispatched, in the backward's threads, too."""

    supports_higher_order_operators = True

    def __init__(self, running: Running, costs: Counter[Any], opaque: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running, self.costs, self.opaque = running, costs, opaque

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented  # a wrapper: the operators that it calls are counted
        if not isinstance(function, HigherOrderOperator):
            if function.namespace == "prim" or function._opname in _QUERIES:
                return NotImplemented
            if not any(isinstance(a, Tensor) and a.is_nested for a in args):  # nested tensors have composite kernels
                with self:  # under inference_mode, composite operators are not decomposed yet
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
        except Exception:  # an unknown kind of tensor must not end the user's step
            self.opaque[name] += 1
            return
        if one is None:
            return
        owner = self.running.now()
        in_optimizer = is_optimizer_step(owner)
        by_model = not owner.again and not in_optimizer
        owner = owner._replace(fqn=OPTIMIZER) if in_optimizer else owner
        self.costs[owner, by_model, one] += 1
        if is_opaque(function):
            self.opaque[name] += 1
