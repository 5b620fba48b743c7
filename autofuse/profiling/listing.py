"""Which operators a function runs, forward and backward, found on fakes: nothing is computed and no memory is taken.

Knows how to overhear operators and to which module each belongs; must not know what one costs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from autofuse.profiling.calls import Names, around_calls
from autofuse.profiling.work import Phase

_SILENT = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided detach alias lift_fresh _unsafe_view "
    "_local_scalar_dense resize_ set_ sym_size sym_stride sym_numel _reshape_alias".split()
)


@dataclass(frozen=True)
class Operator:
    """One operator that ran. Tensors among its arguments and its results are fakes. module: whose call it ran in."""

    function: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Tensor, ...]
    module: str
    phase: Phase

    @property
    def name(self) -> str:
        """Without its overload, "aten::add"."""
        return self.function._schema.name

    @property
    def operands(self) -> list[Tensor]:
        """The tensors among the arguments."""
        return [x for x in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(x, Tensor)]


def listed(
    run: Callable[[], Any], leaves: Sequence[Tensor], named: Mapping[str, nn.Module], root: str, backward: bool
) -> list[Operator]:
    """The operators of `run()` and, where `backward`, of the gradients of its results with respect to `leaves`.

    Call it under the fake mode that the values of `run` belong to. named: the modules that `run` calls, by what their
    names begin with; what runs in none of them is `root`'s. An operator of the backward belongs where its forward ran.
    """
    log = _Log(root)
    with around_calls(Names(named), lambda name, module: log.inside(name)) if named else nullcontext():
        with torch.set_grad_enabled(backward), log:
            results = run()
        wanted = [r for r in pytree.tree_leaves(results) if isinstance(r, Tensor) and r.requires_grad]
        asked = [x for x in leaves if x.requires_grad]
        if backward and wanted and asked:
            gradients = [torch.ones_like(r, memory_format=torch.preserve_format) for r in wanted]
            log.phase = "backward"
            with log:
                torch.autograd.grad(wanted, asked, gradients, allow_unused=True)
    return log.operators


def fresh(value: Any) -> Any:
    """A fake of its own for each tensor in `value`, in the same form and with no history. Call it under a fake mode."""
    if not isinstance(value, Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


class _Log(TorchDispatchMode):
    def __init__(self, root: str) -> None:
        super().__init__()
        self.operators: list[Operator] = []
        self.phase: Phase = "forward"
        self.inner = [root]
        self.turns = [(-1, root)]  # from which sequence number on which module's forward ran

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """A module's call."""
        self._enter(name)
        self.inner.append(name)
        try:
            yield
        finally:
            self.inner.pop()
            self._enter(self.inner[-1])

    def _enter(self, name: str) -> None:
        if self.phase == "forward":
            self.turns.append((torch.autograd._get_sequence_nr(), name))

    def _module(self) -> str:
        if self.phase == "forward":
            return self.inner[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return self.turns[0][1]
        # Of modules that begin at one number, the last is the one in which nodes were made.
        return self.turns[bisect_right(self.turns, node._sequence_nr(), key=lambda turn: turn[0]) - 1][1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func.namespace != "prim" and not func.is_view and func._opname not in _SILENT:
            results = tuple(r for r in pytree.tree_leaves(made) if isinstance(r, Tensor))
            self.operators.append(Operator(func, args, kwargs, results, self._module(), self.phase))
        return made
