"""Marks operands that a fused call saves for its backward pass although the replaced code did not save them.

A caller may write to such a tensor between the two passes. `x += self.mlp(self.norm(x))` works with a hand-written
layer norm, because autograd saves `x - mean`. torch's own kernel saves `x`. Code generation protects marked operands
from such writes (autofuse/fx/install/unshared_operands.py).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, fx

from autofuse import ops
from autofuse.fx.install.unshared_operands import KEPT, SUM, UNSAVED, argument
from autofuse.fx.rewrite.inlined_children import placeholder_values
from autofuse.fx.trace.operation_names import call_text
from autofuse.fx.trace.tracer import ForwardTrace

_Operands = Mapping[fx.Node, tuple[Any, Any]]

# Operations for which autograd saves no operand, and those for which it saves none if the other factor is a number.
_SAVES_NONE = frozenset("mean sum add sub rsub neg size dim numel __add__ __sub__ __radd__ __rsub__ iadd isub".split())
_SAVES_FACTORS = frozenset("mul div truediv __mul__ __rmul__ __truediv__ true_divide".split())
_SAME_TENSOR = frozenset("to float double contiguous view reshape transpose permute unsqueeze flatten type_as".split())
_ChildTraces = Mapping[fx.Node, ForwardTrace]


def mark_unsaved_operands(
    new_nodes: Iterable[fx.Node], old_nodes: Collection[fx.Node], operands: _Operands, child_traces: _ChildTraces,
    replaced: Mapping[fx.Node, Any],
) -> None:  # fmt: skip
    """Mark the fused calls in `new_nodes` that save operands which `old_nodes` did not save.

    Args:
        new_nodes: The nodes of the fused code.
        old_nodes: The replaced nodes.
        operands: The arguments of each node before results were replaced.
        child_traces: The traces of replaced child calls.
        replaced: Replaced nodes, each with its replacement.
    """
    for old, new in replaced.items():
        if isinstance(new, fx.Node) and _is_sum(new) and _is_reachable(new):
            if not any(_savings(old, old_nodes, operands, child_traces)):
                new.meta[UNSAVED] = SUM
    for node in new_nodes:
        saved = KEPT.get(node.target, ()) if callable(node.target) else ()
        unsaved = {
            name for at, name in saved if _is_unsaved(argument(node, at, name), old_nodes, operands, child_traces)
        }
        if unsaved:
            node.meta[UNSAVED] = frozenset(unsaved)


def _is_unsaved(operand: Any, old_nodes: Collection[fx.Node], operands: _Operands, child_traces: _ChildTraces) -> bool:
    if not isinstance(operand, fx.Node) or not isinstance(operand.meta.get("v"), Tensor):
        return False
    if not _is_reachable(operand):
        return False
    savings = list(_savings(operand, old_nodes, operands, child_traces))
    return bool(savings) and not any(savings)


def _is_sum(node: fx.Node) -> bool:
    while node.op == "call_method" and node.target == "contiguous":
        node = node.all_input_nodes[0]
    owner = node.args[0] if node.target is operator.getitem and node.args[1] == 0 else None
    return isinstance(owner, fx.Node) and owner.target is ops.dropout_add_norm


def _savings(
    operand: fx.Node, old_nodes: Collection[fx.Node], operands: _Operands, child_traces: _ChildTraces
) -> Iterator[bool]:
    """For each use of an operand in the replaced code, whether autograd saves it there."""
    for user, used in _users(operand, old_nodes, operands):
        if user not in child_traces:
            yield _saves(user, used, operands)
    for call in old_nodes:
        if call in child_traces:
            yield from _savings_inside(child_traces[call], _aliases_inside(operand, call, child_traces[call], operands))


def _aliases_inside(operand: fx.Node, call: fx.Node, trace: ForwardTrace, operands: _Operands) -> list[fx.Node]:
    """The nodes in a child's trace that are an operand: attributes and placeholders."""
    nodes = list(trace.graph.nodes)
    own = [n for n in nodes if n.op == "get_attr" and operand.target == f"{call.target}.{n.target}"]
    args, kwargs = operands[call]
    passed = placeholder_values(trace, list(args), dict(kwargs)) or []
    placeholders = [n for n in nodes if n.op == "placeholder"]
    return own + [n for n, value in zip(placeholders, passed, strict=False) if value is operand]


def _savings_inside(trace: ForwardTrace, aliases: list[fx.Node]) -> Iterator[bool]:
    """For each use in a child's code, whether autograd saves the operand there."""
    nodes = [n for n in trace.graph.nodes if n.op != "output"]
    operands = {n: (n.args, n.kwargs) for n in nodes}
    for node in aliases:
        yield from (_saves(user, used, operands) for user, used in _users(node, nodes, operands))


def _is_reachable(x: fx.Node) -> bool:
    """Whether the caller or a child can hold a tensor or a view of its memory."""
    if x.op in ("placeholder", "get_attr", "call_module"):
        return True
    if any(user.op in ("output", "call_module") or user.meta.get("writes") for user in x.users):
        return True
    return _called_name(x) in (*_SAME_TENSOR, "getitem", "chunk", "split", "unbind") and any(
        map(_is_reachable, x.all_input_nodes[:1])
    )


def _users(x: fx.Node, old_nodes: Collection[fx.Node], operands: _Operands) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The old nodes that compute with a tensor or a view of it, each with the node that it uses."""
    for user in old_nodes:
        args, kwargs = operands.get(user, ((), {}))
        arguments = [*_nodes_in(args), *_nodes_in(kwargs)]
        if x in arguments:
            if _called_name(user) in _SAME_TENSOR and arguments[0] is x:
                yield from _users(user, old_nodes, operands)
            else:
                yield user, x


def _saves(user: fx.Node, x: fx.Node, operands: _Operands) -> bool:
    """Whether autograd saves `x` for the operation of `user`."""
    if user.op == "call_module":
        return True
    name, (args, kwargs) = _called_name(user), operands[user]
    if name in _SAVES_NONE:
        return False
    others = [n for n in (*_nodes_in(args), *_nodes_in(kwargs)) if isinstance(n.meta.get("v"), Tensor)]
    # A product with another tensor saves both factors.
    return name not in _SAVES_FACTORS or others != [x]


def _called_name(node: fx.Node) -> str:
    return call_text(node).lstrip(".")


def _nodes_in(value: Any) -> list[fx.Node]:
    unsaved: list[fx.Node] = []
    fx.node.map_arg(value, lambda n: unsaved.append(n))
    return unsaved
