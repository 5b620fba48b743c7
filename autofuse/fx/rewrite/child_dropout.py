"""Moves the dropout at the end of a child into its parent, if the parent adds the result.

In a prenorm block a child ends in a dropout, and its parent adds and normalizes. So the parent calls the child without
its dropout and applies the dropout itself. A rule then sees dropout, add and norm in one graph. If no rule fuses the
dropout, the original call is restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn

from autofuse.fx.rewrite.inlined_children import may_inline
from autofuse.fx.rewrite.narrow_calls import narrow_caller
from autofuse.fx.trace.attribute_reads import is_known
from autofuse.fx.trace.operation_names import operation_of, replace_node
from autofuse.fx.trace.paths import Path, Tail
from autofuse.fx.trace.plain_children import is_pristine, is_watched
from autofuse.fx.trace.tracer import ForwardArguments, ForwardTrace


class Children(Protocol):
    """The functions of the planner for the children that a trace calls."""

    def trace_child(self, child: nn.Module, call: ForwardArguments) -> ForwardTrace | None:
        """The trace of a child's call; None if it cannot be traced."""

    def plan_without_dropout(self, child: nn.Module, call: ForwardArguments, dropped: frozenset[Path]) -> bool:
        """Plan a child's forward without its last dropout. Returns False if that is impossible."""

    def discard_plan(self, child: nn.Module, dropped: frozenset[Path]) -> None:
        """Remove a plan of `plan_without_dropout`."""


@dataclass
class SplitCall:
    """A child's call that was split into a narrow call and a dropout.

    Attributes:
        child: The child.
        target: Its name in the parent.
        dropped: The parts of the result that the narrow forward omits, and the dropout.
        original: The erased node of the original call.
        call: The narrow call.
        dropout_input: The value of the narrow call that the dropout gets.
        dropout: The dropout, now a node of the parent.
    """

    child: nn.Module
    target: str
    dropped: frozenset[Path]
    original: fx.Node
    call: fx.Node
    dropout_input: fx.Node
    dropout: fx.Node

    @property
    def is_dropout_fused(self) -> bool:
        """Whether a rule fused the dropout."""
        return bool(getattr(self.dropout, "_erased", False))


def split_calls(trace: ForwardTrace, children: Children) -> list[SplitCall]:
    """Split each call of a child that ends in an active dropout and whose result is added to another value."""
    splits = []
    for node in list(trace.graph.nodes):
        if node.op != "call_module" or node.meta.get("writes") or not trace.twin.training:
            continue
        child = trace.module.get_submodule(str(node.target))
        # Hooks must see the result of the child with dropout. Inlined children need no split.
        if is_known(type(child)) or is_watched(child) or may_inline(child):
            continue
        for path, value in _added_results(trace, node):
            tail = _final_dropout(children.trace_child(child, call_of(node)), path)
            dropped = None if tail is None else unread_paths(trace, node) | {(*path, tail)}
            if tail and dropped and children.plan_without_dropout(child, call_of(node), dropped):
                splits.append(_split_call(trace, node, value, child, tail, dropped))
                break
    return splits


def rejoin_calls(trace: ForwardTrace, calls: list[SplitCall], children: Children) -> list[SplitCall]:
    """Restore the calls whose dropout no rule fused. Returns the calls that stay split."""
    for split in calls:
        if not split.is_dropout_fused:
            _rejoin_call(trace, split)
            children.discard_plan(split.child, split.dropped)
    return [split for split in calls if split.is_dropout_fused]


def call_of(node: fx.Node) -> ForwardArguments:
    """The example arguments of a child call, from before the child could modify them."""
    passed: ForwardArguments | None = node.meta.get("call")
    if passed is not None:
        return passed
    args: Any = fx.node.map_arg(node.args, lambda n: n.meta["v"])
    kwargs: Any = fx.node.map_arg(node.kwargs, lambda n: n.meta["v"])
    return tuple(args), dict(kwargs)


def unread_paths(trace: ForwardTrace, node: fx.Node) -> frozenset[Path]:
    """The paths of the values in a child call's result that the caller does not read."""
    items = trace.results.get(node, {})
    return frozenset(p for p, i in items.items() if i.node is None or is_erased(i.node) or not i.node.users)


def is_erased(node: fx.Node) -> bool:
    """Whether a node was erased from its graph."""
    return getattr(node, "_erased", False)


def _added_results(trace: ForwardTrace, node: fx.Node) -> Iterator[tuple[Path, fx.Node]]:
    """The tensors in a child's result that are added to another value, with their paths in the result."""
    values = [((), node), *((p, i.node) for p, i in trace.results.get(node, {}).items() if i.node is not None)]
    for path, value in values:
        users = [] if is_erased(value) else list(value.users)
        if isinstance(value.meta.get("v"), Tensor) and any(_is_add(u) for u in users):
            yield path, value


def _is_add(node: fx.Node) -> bool:
    op = operation_of(node)
    return op is not None and op.name == "add"


def _final_dropout(inner: ForwardTrace | None, path: Path) -> Tail | None:
    """The dropout that computes the value at `path` of a child's result, if it has no other use."""
    if inner is None:
        return None
    node: Any = next(n for n in inner.graph.nodes if n.op == "output").args[0]
    for key in path:
        node = _item(node, key)
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.users) != 1:
        return None
    name = str(node.target)
    dropout = inner.module.get_submodule(name)
    # A dropout that is called twice or has two names cannot be moved.
    calls = [n for n in inner.graph.nodes if n.op == "call_module" and str(n.target) == name]
    names = [n for n, m in inner.module.named_modules(remove_duplicate=False) if m is dropout]
    drops = type(dropout) is nn.Dropout and dropout.p > 0 and is_pristine(dropout)
    active = drops and bool(inner.twin.get_submodule(name).training)
    return Tail(name) if active and calls == [node] and len(names) == 1 else None


def _item(container: Any, key: Any) -> Any:
    return container[key] if isinstance(container, (tuple, list, dict)) else None


def _split_call(
    trace: ForwardTrace, node: fx.Node, value: fx.Node, child: nn.Module, tail: Tail, dropped: frozenset[Path]
) -> SplitCall:
    graph, target = trace.graph, str(node.target)
    with graph.inserting_before(node):
        module_node = graph.get_attr(target)
        module_node.meta["v"] = child
        call = graph.call_function(narrow_caller(dropped), (module_node, *node.args), dict(node.kwargs))
    call.meta = dict(node.meta)
    dropout_input = call if value is node else value
    with graph.inserting_after(dropout_input):
        dropout = graph.call_module(f"{target}.{tail.dropout}")
    dropout.meta = dict(value.meta)
    dropout.meta["writes"] = []
    replace_node(value, dropout)
    dropout.args = (dropout_input,)
    if value is not node:
        replace_node(node, call)
    # The trace has no value from before the dropout, so a fake of the same form stands for it.
    with trace.mode, torch.no_grad():
        dropout_input.meta["v"] = torch.empty_like(value.meta["v"])
    if value in trace.sizes:
        trace.sizes[dropout] = trace.sizes[dropout_input] = trace.sizes[value]
    split = SplitCall(child, target, dropped, node, call, dropout_input, dropout)
    graph.erase_node(node)
    return split


def _rejoin_call(trace: ForwardTrace, split: SplitCall) -> None:
    graph, old = trace.graph, split.original
    args, kwargs = split.call.args[1:], split.call.kwargs
    with graph.inserting_before(split.call):
        call = graph.call_module(split.target, args, kwargs)
    call.meta = dict(old.meta)
    value = call if split.dropout_input is split.call else split.dropout_input
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
