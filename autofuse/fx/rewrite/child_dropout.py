"""Children that end in a dropout whose result their caller adds: the caller may do the dropping.

In a pre-norm block the dropout stands at the end of a child, and the add and the norm in its parent. The parent calls
the child for what the dropout is given, and drops itself, so that a rule sees dropout, add and norm side by side. Where
no rule takes the dropout, the call is put back as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn

from autofuse.fx.rewrite.inlined_children import may_enter
from autofuse.fx.rewrite.narrow_calls import narrow_caller
from autofuse.fx.trace.attribute_reads import is_known
from autofuse.fx.trace.operation_names import operation_of, replace_node
from autofuse.fx.trace.paths import Path, Tail
from autofuse.fx.trace.plain_children import is_pristine, is_watched
from autofuse.fx.trace.tracer import ForwardArguments, ForwardTrace


class Children(Protocol):
    """What a planner knows of the children that a trace calls."""

    def inside(self, child: nn.Module, call: ForwardArguments) -> ForwardTrace | None:
        """What a child does in a call, if that can be written down."""

    def undropped(self, child: nn.Module, call: ForwardArguments, dropped: frozenset[Path]) -> bool:
        """Plan a child's forward that leaves its last dropout out; whether that can be."""

    def unused(self, child: nn.Module, dropped: frozenset[Path]) -> None:
        """Forget that plan."""


@dataclass
class SplitCall:
    """A call of a child that was split: `call` of its narrow forward gives `given`, of which `dropout` is made."""

    child: nn.Module
    target: str
    dropped: frozenset[Path]
    original: fx.Node  # erased; what it was called with
    call: fx.Node
    given: fx.Node
    dropout: fx.Node

    @property
    def taken(self) -> bool:
        """Whether a rule took the dropout."""
        return bool(getattr(self.dropout, "_erased", False))


def split_calls(trace: ForwardTrace, children: Children) -> list[SplitCall]:
    """Split every call of a child that ends in a dropout which drops, and whose result is added to something."""
    found = []
    for node in list(trace.graph.nodes):
        if node.op != "call_module" or node.meta.get("writes") or not trace.twin.training:
            continue
        child = trace.module.get_submodule(str(node.target))
        if is_known(type(child)) or is_watched(child) or may_enter(child):
            continue
        for path, value in _added(trace, node):
            tail = _tail(children.inside(child, call_of(node)), path)
            dropped = None if tail is None else unread_paths(trace, node) | {(*path, tail)}
            if tail and dropped and children.undropped(child, call_of(node), dropped):
                found.append(_split(trace, node, value, child, tail, dropped))
                break
    return found


def rejoin_calls(trace: ForwardTrace, calls: list[SplitCall], children: Children) -> list[SplitCall]:
    """Put back the calls whose dropout no rule took; those that stay split."""
    for split in calls:
        if not split.taken:
            _rejoin(trace, split)
            children.unused(split.child, split.dropped)
    return [split for split in calls if split.taken]


def call_of(node: fx.Node) -> ForwardArguments:
    """The example arguments of a child call, as they were when it was made."""
    passed: ForwardArguments | None = node.meta.get("call")
    if passed is not None:
        return passed
    args: Any = fx.node.map_arg(node.args, lambda n: n.meta["v"])
    kwargs: Any = fx.node.map_arg(node.kwargs, lambda n: n.meta["v"])
    return tuple(args), dict(kwargs)


def unread_paths(trace: ForwardTrace, node: fx.Node) -> frozenset[Path]:
    """Where in the result of a child call stands what nobody reads."""
    items = trace.results.get(node, {})
    return frozenset(p for p, i in items.items() if i.node is None or is_erased(i.node) or not i.node.users)


def is_erased(node: fx.Node) -> bool:
    """Whether a node has left its graph."""
    return getattr(node, "_erased", False)


def _added(trace: ForwardTrace, node: fx.Node) -> Iterator[tuple[Path, fx.Node]]:
    """The tensors in a child's result that are added to something, and where they stand in it."""
    values = [((), node), *((p, i.node) for p, i in trace.results.get(node, {}).items() if i.node is not None)]
    for path, value in values:
        users = [] if is_erased(value) else list(value.users)
        if isinstance(value.meta.get("v"), Tensor) and any(_is_add(u) for u in users):
            yield path, value


def _is_add(node: fx.Node) -> bool:
    op = operation_of(node)
    return op is not None and op.name == "add"


def _tail(inner: ForwardTrace | None, path: Path) -> Tail | None:
    """The dropout that makes the value at `path` of what a child returns, if it drops nothing else."""
    if inner is None:
        return None
    node: Any = next(n for n in inner.graph.nodes if n.op == "output").args[0]
    for key in path:
        node = _item(node, key)
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.users) != 1:
        return None
    name = str(node.target)
    dropout = inner.module.get_submodule(name)
    calls = [n for n in inner.graph.nodes if n.op == "call_module" and str(n.target) == name]
    names = [n for n, m in inner.module.named_modules(remove_duplicate=False) if m is dropout]
    drops = type(dropout) is nn.Dropout and dropout.p > 0 and is_pristine(dropout)
    active = drops and bool(inner.twin.get_submodule(name).training)
    return Tail(name) if active and calls == [node] and len(names) == 1 else None


def _item(container: Any, key: Any) -> Any:
    return container[key] if isinstance(container, (tuple, list, dict)) else None


def _split(
    trace: ForwardTrace, node: fx.Node, value: fx.Node, child: nn.Module, tail: Tail, dropped: frozenset[Path]
) -> SplitCall:
    graph, target = trace.graph, str(node.target)
    with graph.inserting_before(node):
        held = graph.get_attr(target)
        held.meta["v"] = child
        call = graph.call_function(narrow_caller(dropped), (held, *node.args), dict(node.kwargs))
    call.meta = dict(node.meta)
    given = call if value is node else value
    with graph.inserting_after(given):
        dropout = graph.call_module(f"{target}.{tail.dropout}")
    dropout.meta = dict(value.meta)
    dropout.meta["writes"] = []
    replace_node(value, dropout)
    dropout.args = (given,)
    if value is not node:
        replace_node(node, call)
    with trace.mode, torch.no_grad():
        given.meta["v"] = torch.empty_like(value.meta["v"])
    if value in trace.sizes:
        trace.sizes[dropout] = trace.sizes[given] = trace.sizes[value]
    split = SplitCall(child, target, dropped, node, call, given, dropout)
    graph.erase_node(node)
    return split


def _rejoin(trace: ForwardTrace, split: SplitCall) -> None:
    graph, old = trace.graph, split.original
    args, kwargs = split.call.args[1:], split.call.kwargs
    with graph.inserting_before(split.call):
        call = graph.call_module(split.target, args, kwargs)
    call.meta = dict(old.meta)
    value = call if split.given is split.call else split.given
    value.meta["v"] = split.dropout.meta["v"]
    replace_node(split.dropout, value)
    graph.erase_node(split.dropout)
    if split.call.users:
        replace_node(split.call, call)
    graph.erase_node(split.call)
    if split.call in trace.sizes:
        trace.sizes[call] = trace.sizes[split.call]
    if old in trace.results:
        trace.results[call] = trace.results.pop(old)
