"""Maps torch's functions and methods to the operations of the vocabulary."""

from __future__ import annotations

import builtins
import importlib
import operator
import re
from collections.abc import Collection, Hashable
from functools import cache
from typing import Any

from torch import Tensor, fx

from autofuse.fx.trace.contents import READS
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.rows import Op
from autofuse.ir.vocabulary import NAMES, OPS

_CHECKS_SIZES = "checks_sizes"  # key in the meta of a node that must stay although its result is not used
_SIZE_CHECKING = frozenset({"view", "reshape", "expand", "unflatten", "view_as", "expand_as", "broadcast_to"})
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


def operation_of(node: fx.Node) -> Op | None:
    """Returns the vocabulary's operation for a call of a function or method, or None. `add_` is `add` with a write."""
    if node.meta.get("foreign"):
        return None
    if node.op == "call_method":
        name = str(node.target)
        return NAMES.get(f".{name}") or (
            NAMES.get(f".{name[:-1]}") if name.endswith("_") and not name.endswith("__") else None
        )
    return OPS.get(_operations_by_function().get(node.target, "")) if node.op == "call_function" else None


def is_harmless(node: fx.Node) -> bool:
    """Returns whether a call that is not an operation is known to change nothing."""
    if node.meta.get("foreign"):
        return False
    if node.op == "call_method":
        return f".{node.target}" in HARMLESS
    return node.op == "call_function" and (
        node.target in _harmless_functions() or getattr(node.target, "__name__", "").startswith("rebuilt_")
    )


def is_pure(node: fx.Node) -> bool:
    """Returns whether an unused node can be erased without any visible effect."""
    if (
        node.meta.get("writes")
        or node.meta.get(_CHECKS_SIZES)
        or node.op not in ("get_attr", "call_function", "call_method")
    ):
        return False
    if node.op == "get_attr" or node.target in (operator.getitem, getattr, *READS):
        return True
    operation = operation_of(node)
    return operation.effect != "random" if operation else is_harmless(node)


def keep_checks(graph: fx.Graph) -> None:
    """Marks unused calls that raise an error for other sizes, such as `x.view(B, 4, 8)`, so that they stay."""
    for node in graph.nodes:
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if not node.users and node.op in ("call_method", "call_function") and name in _SIZE_CHECKING:
            node.meta[_CHECKS_SIZES] = True


def erase_dead(graph: fx.Graph, removable: Collection[fx.Node] = ()) -> None:
    """Erases every unused node that is pure or in `removable`, the last node first."""
    for node in dead_nodes(graph, removable):
        graph.erase_node(node)


def dead_nodes(graph: fx.Graph, removable: Collection[fx.Node] = ()) -> list[fx.Node]:
    """Returns the nodes that are pure or in `removable` and are used only by such nodes, the last node first."""
    operation: dict[fx.Node, None] = {}
    for node in reversed(graph.nodes):
        if all(user in operation for user in node.users) and (node in removable or is_pure(node)):
            operation[node] = None
    return list(operation)


def replace_node(old: fx.Node, new: fx.Node) -> None:
    """Replaces `old` with `new` in every user: where it is read, and in the lists of tensors that a user writes to."""
    for user in old.users:
        if old in user.meta.get("writes", ()):
            user.meta["writes"] = [new if written is old else written for written in user.meta["writes"]]
    old.replace_all_uses_with(new)


def structure_of(graph: fx.Graph) -> Hashable:
    """Returns a value that is equal for graphs that compute the same in the same order.

    Numbers that are passed to the user's own objects do not count. A cache receives the index of its layer, for
    example,
    and uses it in the same way before and after a rewrite.
    """
    return tuple((n.op, n.target, _operands(n)) for n in graph.nodes)


def forms_of(graph: fx.Graph) -> Hashable:
    """Returns the dtypes and ranks of all tensors of a graph, and which sizes are 1, so that they are broadcast.

    Graphs of equal structure compute different things for a boolean mask and for a mask of numbers.
    """
    values = (n.meta.get("v") for n in graph.nodes)
    return tuple(
        (v.dtype, v.device.type, tuple(size == 1 for size in v.shape)) if isinstance(v, Tensor) else None
        for v in values
    )


def _operands(node: fx.Node) -> str:
    text = repr((node.args, node.kwargs))  # fx names nodes after their operation, so the text compares structure
    unknown = node.op == "call_method" and operation_of(node) is None and not is_harmless(node)
    return _NUMBER.sub("#", text) if unknown else text


def call_text(node: fx.Node) -> str:
    """Returns the name that messages use for an operation that is not in the vocabulary."""
    if node.op == "call_method":
        return f".{node.target}"
    if node.op == "call_module":
        return f"self.{node.target}"
    if getattr(node.target, "__name__", "") == "call_narrow":  # rewrite/narrow_calls.py
        return f"self.{node.all_input_nodes[0].target}"
    return getattr(node.target, "__name__", str(node.target))


@cache
def _operations_by_function() -> dict[Any, str]:
    """Maps every function of the vocabulary that this version of torch has to its operation."""
    operation = {}
    for name, op in NAMES.items():
        module, _, function = name.rpartition(".")
        if (
            module
            and not name.startswith((".", "einops"))
            and (target := _import_function(module, function)) is not None
        ):
            operation[target] = op.name
    return operation


@cache
def _harmless_functions() -> frozenset[Any]:
    operation = [_import_function(*name.rsplit(".", 1)) for name in HARMLESS if name.startswith(("torch.", "math."))]
    return frozenset(
        [*filter(None, operation), *(getattr(builtins, n) for n in HARMLESS if hasattr(builtins, n)), operator.contains]
    )


def _import_function(module: str, function: str) -> Any:
    try:
        return getattr(importlib.import_module(module), function, None)
    except ImportError:
        return None
