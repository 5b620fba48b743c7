"""torch's functions and methods -> the vocabulary's operations."""

from __future__ import annotations

import builtins
import importlib
import operator
import re
from collections.abc import Collection, Hashable
from functools import cache
from typing import Any

from torch import fx

from autofuse.fx.trace.contents import READS
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.rows import Op
from autofuse.ir.vocabulary import NAMES, OPS

_CHECKS_SIZES = "checks_sizes"  # under which a node says that it stays, although nobody uses its result
_OF_SIZES = frozenset({"view", "reshape", "expand", "unflatten", "view_as", "expand_as", "broadcast_to"})
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


def operation_of(node: fx.Node) -> Op | None:
    """The operation that a call of a function or method is, if the vocabulary has it. `add_` is `add` with a write."""
    if node.meta.get("foreign"):
        return None
    if node.op == "call_method":
        name = str(node.target)
        return NAMES.get(f".{name}") or (
            NAMES.get(f".{name[:-1]}") if name.endswith("_") and not name.endswith("__") else None
        )
    return OPS.get(_functions().get(node.target, "")) if node.op == "call_function" else None


def is_harmless(node: fx.Node) -> bool:
    """Whether a call that is no operation is known to change nothing."""
    if node.meta.get("foreign"):
        return False
    if node.op == "call_method":
        return f".{node.target}" in HARMLESS
    return node.op == "call_function" and (
        node.target in _harmless() or getattr(node.target, "__name__", "").startswith("rebuilt_")
    )


def is_pure(node: fx.Node) -> bool:
    """Whether nobody notices if a node that has no users goes."""
    if (
        node.meta.get("writes")
        or node.meta.get(_CHECKS_SIZES)
        or node.op not in ("get_attr", "call_function", "call_method")
    ):
        return False
    if node.op == "get_attr" or node.target in (operator.getitem, getattr, *READS):
        return True
    found = operation_of(node)
    return found.effect != "random" if found else is_harmless(node)


def keep_checks(graph: fx.Graph) -> None:
    """Keep what the code computes for no use, and what raises an error for other sizes: `x.view(B, 4, 8)`."""
    for node in graph.nodes:
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if not node.users and node.op in ("call_method", "call_function") and name in _OF_SIZES:
            node.meta[_CHECKS_SIZES] = True


def erase_dead(graph: fx.Graph, gone: Collection[fx.Node] = ()) -> None:
    """Erase what is pure or `gone` and has no users, the last first."""
    for node in dead(graph, gone):
        graph.erase_node(node)


def dead(graph: fx.Graph, gone: Collection[fx.Node] = ()) -> list[fx.Node]:
    """What is pure or `gone` and has no users but such, the last first."""
    found: dict[fx.Node, None] = {}
    for node in reversed(graph.nodes):
        if all(user in found for user in node.users) and (node in gone or is_pure(node)):
            found[node] = None
    return list(found)


def put_in_place(old: fx.Node, new: fx.Node) -> None:
    """Let `new` be read, and written, wherever `old` is: what overwrote the result of `old` overwrites its."""
    for user in old.users:
        if old in user.meta.get("writes", ()):
            user.meta["writes"] = [new if written is old else written for written in user.meta["writes"]]
    old.replace_all_uses_with(new)


def structure_of(graph: fx.Graph) -> Hashable:
    """Equal for graphs that compute the same in the same order, whatever numbers are handed to a user's own objects.

    A cache is told the number of its layer; what it does with it is the same before and after a rewrite.
    """
    return tuple((n.op, n.target, _operands(n)) for n in graph.nodes)


def _operands(node: fx.Node) -> str:
    text = repr((node.args, node.kwargs))  # fx names nodes after what they compute
    unknown = node.op == "call_method" and operation_of(node) is None and not is_harmless(node)
    return _NUMBER.sub("#", text) if unknown else text


def called(node: fx.Node) -> str:
    """What to call an operation that the vocabulary does not have."""
    if node.op == "call_method":
        return f".{node.target}"
    if node.op == "call_module":
        return f"self.{node.target}"
    if getattr(node.target, "__name__", "") == "call_narrow":  # rewrite/narrow_calls.py
        return f"self.{node.all_input_nodes[0].target}"
    return getattr(node.target, "__name__", str(node.target))


@cache
def _functions() -> dict[Any, str]:
    """Every function of the vocabulary that exists here -> its operation."""
    found = {}
    for name, op in NAMES.items():
        module, _, function = name.rpartition(".")
        if module and not name.startswith((".", "einops")) and (target := _imported(module, function)) is not None:
            found[target] = op.name
    return found


@cache
def _harmless() -> frozenset[Any]:
    found = [_imported(*name.rsplit(".", 1)) for name in HARMLESS if name.startswith(("torch.", "math."))]
    return frozenset(
        [*filter(None, found), *(getattr(builtins, n) for n in HARMLESS if hasattr(builtins, n)), operator.contains]
    )


def _imported(module: str, function: str) -> Any:
    try:
        return getattr(importlib.import_module(module), function, None)
    except ImportError:
        return None
