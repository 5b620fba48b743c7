"""Lists the operators that a function runs, forward and backward, on fake tensors: nothing is computed or allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.profiling.live.formulas import OperatorCost, cost
from autofuse.profiling.live.module_calls import ModuleNames, around_calls
from autofuse.profiling.live.operator_owner import Running
from autofuse.profiling.trace.work import Phase
from autofuse.results.profile import OUTSIDE
from autofuse.torch_private import OpOverload, TorchDispatchMode, pytree


@dataclass(frozen=True)
class ListedOperator:
    """One operator that ran. Tensors among its arguments and its results are fakes.

    module: the module in whose call it ran; "" for the function itself.
    """

    function: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Tensor, ...]
    cost: OperatorCost
    module: str
    phase: Phase

    @property
    def name(self) -> str:
        """The name without the overload, "aten::add"."""
        return str(self.function._schema.name)

    @property
    def operands(self) -> list[Tensor]:
        """The tensors among the arguments."""
        return [x for x in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(x, Tensor)]

    @property
    def device(self) -> str:
        """The type of the device that it runs on."""
        return next((x.device.type for x in (*self.results, *self.operands)), "cpu")


def list_operators(
    run: Callable[[], Any], root: nn.Module, leaves: Sequence[Tensor], backward: bool
) -> list[ListedOperator]:
    """Return the operators of `run()` and, if `backward`, of its gradients.

    Call it under the fake mode of the values of `run`. An operator of the backward belongs to the module of its
    forward.

    Args:
        run: The function.
        root: Contains the modules that `run` calls. Their names are relative to it.
        leaves: The tensors whose gradients are computed.
        backward: Whether to run the backward, too.
    """
    names = ModuleNames({"": root})
    running = Running()
    log = _Log(running)
    with around_calls(names, running.called), torch.set_grad_enabled(backward):
        with log:
            results = run()
        tensors = [r for r in pytree.tree_leaves(results) if isinstance(r, Tensor)]
        wanted, asked = [r for r in tensors if r.requires_grad], [x for x in leaves if x.requires_grad]
        if backward and wanted and asked:
            gradients = [torch.ones_like(r) for r in wanted]
            with log:
                torch.autograd.grad(wanted, asked, gradients, allow_unused=True)
    return log.operators


def fresh(value: Any) -> Any:
    """Return a new fake for a tensor, in the same form and without history. Call it under a fake mode."""
    if not isinstance(value, Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


class _Log(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, running: Running) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running = running
        self.operators: list[ListedOperator] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = function(*args, **kwargs)
        one = cost(function, args, kwargs, made)
        if one is not None:
            whose = self.running.now()
            results = tuple(r for r in pytree.tree_leaves(made) if isinstance(r, Tensor))
            name = "" if whose.fqn == OUTSIDE else whose.fqn
            self.operators.append(ListedOperator(function, args, kwargs, results, one, name, whose.phase))
        return made
