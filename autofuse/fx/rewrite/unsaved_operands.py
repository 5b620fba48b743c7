"""Operands that a fused call keeps for its backward pass, and the code that it replaces did not keep.

The caller may write to such a tensor between the two passes: `x += self.mlp(self.norm(x))` works with a layer norm
that is spelled out, of which autograd keeps `x - mean`, and torch's own kernel keeps `x`. What is found is marked; the
operand is put out of reach of such writes when code is made (autofuse/fx/install/unshared_operands.py).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, fx

from autofuse import ops
from autofuse.fx.install.unshared_operands import KEPT, SUM, UNSAVED, argument
from autofuse.fx.rewrite.inlined_children import parameters_of
from autofuse.fx.trace.operation_names import call_text
from autofuse.fx.trace.tracer import ForwardTrace

_Operands = Mapping[fx.Node, tuple[Any, Any]]

# Operations of which autograd keeps nothing of an operand, if what they are given besides is a number or no factor.
_KEEPS_NONE = frozenset("mean sum add sub rsub neg size dim numel __add__ __sub__ __radd__ __rsub__ iadd isub".split())
_KEEPS_FACTORS = frozenset("mul div truediv __mul__ __rmul__ __truediv__ true_divide".split())
_SAME_TENSOR = frozenset("to float double contiguous view reshape transpose permute unsqueeze flatten type_as".split())


_Inside = Mapping[fx.Node, ForwardTrace]


def mark(
    come: Iterable[fx.Node], gone: Collection[fx.Node], operands: _Operands, inside: _Inside,
    replaced: Mapping[fx.Node, Any],
) -> None:  # fmt: skip
    """Mark the fused calls among the nodes that have `come`, whose operands the nodes that are `gone` did not keep.

    operands: what each node had for arguments before anything was replaced. inside: what calls of children, which a
    match took away, computed. replaced: what stands for what.
    """
    for old, new in replaced.items():
        if isinstance(new, fx.Node) and _is_sum(new) and _is_reached(new):
            if not any(_kept(old, gone, operands, inside)):
                new.meta[UNSAVED] = SUM
    for node in come:
        kept = KEPT.get(node.target, ()) if callable(node.target) else ()
        found = {name for at, name in kept if _is_unsaved(argument(node, at, name), gone, operands, inside)}
        if found:
            node.meta[UNSAVED] = frozenset(found)


def _is_unsaved(operand: Any, gone: Collection[fx.Node], operands: _Operands, inside: _Inside) -> bool:
    if not isinstance(operand, fx.Node) or not isinstance(operand.meta.get("v"), Tensor):
        return False
    if not _is_reached(operand):
        return False
    found = list(_kept(operand, gone, operands, inside))
    return bool(found) and not any(found)


def _is_sum(node: fx.Node) -> bool:
    while node.op == "call_method" and node.target == "contiguous":
        node = node.all_input_nodes[0]
    of = node.args[0] if node.target is operator.getitem and node.args[1] == 0 else None
    return isinstance(of, fx.Node) and of.target is ops.dropout_add_norm


def _kept(operand: fx.Node, gone: Collection[fx.Node], operands: _Operands, inside: _Inside) -> Iterator[bool]:
    """For each use of an operand in the code that is gone, whether autograd keeps it for that."""
    for user, of in _users(operand, gone, operands):
        if user not in inside:
            yield _keeps(user, of, operands)
    for call in gone:
        if call in inside:
            yield from _kept_inside(inside[call], _names_inside(operand, call, inside[call], operands))


def _names_inside(operand: fx.Node, call: fx.Node, trace: ForwardTrace, operands: _Operands) -> list[fx.Node]:
    """What stands for an operand in the trace of a child: its own attribute, or what it is called with."""
    nodes = list(trace.graph.nodes)
    own = [n for n in nodes if n.op == "get_attr" and operand.target == f"{call.target}.{n.target}"]
    args, kwargs = operands[call]
    given = parameters_of(trace, list(args), dict(kwargs)) or []
    placeholders = [n for n in nodes if n.op == "placeholder"]
    return own + [n for n, value in zip(placeholders, given, strict=False) if value is operand]


def _kept_inside(trace: ForwardTrace, found: list[fx.Node]) -> Iterator[bool]:
    """For each use in a child's own code, whether autograd keeps the operand for it."""
    nodes = [n for n in trace.graph.nodes if n.op != "output"]
    operands = {n: (n.args, n.kwargs) for n in nodes}
    for node in found:
        yield from (_keeps(user, of, operands) for user, of in _users(node, nodes, operands))


def _is_reached(x: fx.Node) -> bool:
    """Whether somebody else has a tensor in hand, or the memory that it lies in: the caller, or a child."""
    if x.op in ("placeholder", "get_attr", "call_module"):
        return True
    if any(user.op in ("output", "call_module") or user.meta.get("writes") for user in x.users):
        return True
    return _name(x) in (*_SAME_TENSOR, "getitem", "chunk", "split", "unbind") and any(
        map(_is_reached, x.all_input_nodes[:1])
    )


def _users(x: fx.Node, gone: Collection[fx.Node], operands: _Operands) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Who among those that are gone computed with a tensor, or with another look at it."""
    for user in gone:
        args, kwargs = operands.get(user, ((), {}))
        given = [*_nodes(args), *_nodes(kwargs)]
        if x in given:
            if _name(user) in _SAME_TENSOR and given[0] is x:
                yield from _users(user, gone, operands)
            else:
                yield user, x


def _keeps(user: fx.Node, x: fx.Node, operands: _Operands) -> bool:
    if user.op == "call_module":
        return True
    name, (args, kwargs) = _name(user), operands[user]
    if name in _KEEPS_NONE:
        return False
    others = [n for n in (*_nodes(args), *_nodes(kwargs)) if isinstance(n.meta.get("v"), Tensor)]
    return name not in _KEEPS_FACTORS or others != [x]


def _name(node: fx.Node) -> str:
    return call_text(node).lstrip(".")


def _nodes(value: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(value, lambda n: found.append(n))
    return found
