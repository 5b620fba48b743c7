"""Records what a forward does under `torch.no_grad()`, in a graph that runs with gradients enabled.

| in forward | in the graph |
| --- | --- |
| an operation on tensors | the same on `x.detach()` for each operand that may have a gradient |
| the call of a child | `call_without_gradients(child, ...)`, because its parameters have gradients |

`detach` also drops forward-mode derivatives, which no_grad does not, so a guard excludes these. Writes in place are
refused: the graph would need them on the tensor itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from autofuse.fx.trace.values import tensors
from autofuse.torch_private import forward_ad, peek_interpreter_stack

# Operations that return their operand itself, with its gradient, for some layouts or sizes only.
_MAY_RETURN_OPERAND = frozenset({"contiguous", "sum_to_size", "reshape_as", "expand_as"})


def has_plain_derivatives() -> bool:
    """Whether neither forward-mode derivatives nor transforms of torch.func are active."""
    return forward_ad._current_level < 0 and (torch.compiler.is_compiling() or peek_interpreter_stack() is None)


def can_detach(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an operation under no_grad is the same as the operation on detached operands.

    Args:
        name: The name of the function.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
    """
    writes = name.endswith("_") and not name.endswith("__") or name == "__setitem__" or name.startswith("__i")
    return not writes and "out" not in kwargs and "memory_format" not in kwargs and name not in _MAY_RETURN_OPERAND


def returns_operand(result: Any, operands: Any) -> bool:
    """Whether a result is one of the operands, as in `x.float()` of a float32 tensor. It keeps its gradient."""
    given = {id(t) for t in tensors(operands)}
    return any(id(t) in given for t in tensors(result))


class Detached:
    """The results of operations under no_grad, which have no gradient."""

    def __init__(self) -> None:
        self._results: dict[int, tuple[Tensor, int]] = {}  # id of a result -> it, its version

    def add(self, result: Any) -> None:
        """Notes the results of an operation on detached operands."""
        self._results |= {id(t): (t, t._version) for t in tensors(result)}

    def arguments(self, graph: fx.Graph, arguments: Any, operands: dict[fx.Node, Tensor]) -> Any:
        """Returns the arguments of a node, with each tensor that may have a gradient detached.

        Args:
            graph: The graph of the node.
            arguments: The arguments of the node.
            operands: The tensors among them.
        """
        known = {n: self._detach(graph, n, t) for n, t in operands.items() if self._may_have_gradient(t)}
        return fx.node.map_arg(arguments, lambda n: known.get(n, n))

    def _may_have_gradient(self, x: Tensor) -> bool:
        result, version = self._results.get(id(x), (None, 0))
        is_unchanged = result is x and version == x._version  # a write later may give it a gradient
        return not is_unchanged and (x.is_floating_point() or x.is_complex())

    def _detach(self, graph: fx.Graph, node: fx.Node, x: Tensor) -> fx.Node:
        new = graph.call_method("detach", (node,))
        new.meta |= {"v": x.detach(), "place": node.meta.get("place")}
        return new


def call_without_gradients(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Calls a module under `torch.no_grad()`."""
    with torch.no_grad():
        return module(*args, **kwargs)
