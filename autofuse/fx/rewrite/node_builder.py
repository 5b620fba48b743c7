"""Builds fx nodes for canonical values. Existing nodes are used; other values are computed again.

Each new node is also evaluated on fakes, so that its shape and dtype are known.
"""

from __future__ import annotations

import math
import operator
import re
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.proxy import GraphAppendingTracer

from autofuse.canonical import CAST, PERMUTE, View
from autofuse.canonical.view import LEAF, order_of
from autofuse.fx.rewrite.graph_capture import CapturedTrace, InlinedNode
from autofuse.fx.rewrite.size_nodes import size_node
from autofuse.fx.trace.size_origins import Sizes
from autofuse.fx.trace.size_sources import result_sizes
from autofuse.ir.graph import ATTRIBUTE, CONST, ITEM, MODULE, SLICE, TUPLE, Value, is_const
from autofuse.ir.layout import Tail
from autofuse.ir.spelling import SPELLINGS
from autofuse.match.site import Site
from autofuse.reasons import writing
from autofuse.reasons.reason import Reason, because


class CannotBuild(Exception):
    """The fused call cannot be built. `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Builder:
    """Builds nodes directly before the node `place`."""

    def __init__(self, captured: CapturedTrace, view: View, site: Site, place: fx.Node) -> None:
        self.captured, self.view, self.site = captured, view, site
        self.graph = captured.trace.graph
        self.order = {node: i for i, node in enumerate(self.graph.nodes)}
        self.place_index = self.order[place]
        self.tracer = GraphAppendingTracer(self.graph)
        self.copies: dict[fx.Node, Any] = {}  # nodes of inlined children -> their copies here

    def build(self, v: Value) -> Any:
        """The node or the constant for a canonical value.

        Raises:
            CannotBuild: the value is not available at this place.
        """
        if v.op == CONST:
            return v.data
        originals = [v.data] if v.op == LEAF and isinstance(v.data, Value) else self.view.originals(v)
        originals = [o for o in originals if not self.is_overwritten(o)]
        for original in originals:
            # The best source is an existing node that stays in the graph.
            node = self.captured.nodes.get(original)
            if (
                node is not None
                and original not in self.site.removed.values
                and self.order.get(node, self.place_index) < self.place_index
                and not self.reads_removed_tensor(node)
            ):
                return node
        for original in originals:
            # The next one is an attribute of the module.
            if (path := self.captured.paths.get(original)) is not None:
                return self.evaluate_new(self.graph.get_attr(path))
        for original in originals:
            # The last one is a node of an inlined child whose call is removed.
            if (inner := self.captured.inner.get(original)) is not None and self.is_removed(inner.call):
                return self.build_child_node(inner, inner.node)
        return self.build_derived(v)

    def is_overwritten(self, v: Value) -> bool:
        """Whether the memory of a value is overwritten before the place."""
        write = self.captured.overwritten.get(v)
        return write is not None and self.order.get(write, self.place_index) < self.place_index

    def is_removed(self, node: fx.Node) -> bool:
        """Whether a node's value is removed with the match, or is one of its results."""
        value = self.captured.values.get(node)
        return value in self.site.removed.values or any(r.value is value for r in self.site.results)

    def build_child_node(self, inner: InlinedNode, node: Any) -> Any:
        """A copy of a node of an inlined child. Raises CannotBuild."""
        if node not in self.copies:
            self.copies[node] = self.copy_child_node(inner, node)
        return self.copies[node]

    def copy_child_node(self, inner: InlinedNode, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self.child_argument(inner.values[node])
        if (size := self.removed_argument_size(inner, node)) is not None:
            return size
        args = fx.node.map_arg(node.args, lambda n: self.build_child_node(inner, n))
        kwargs = fx.node.map_arg(node.kwargs, lambda n: self.build_child_node(inner, n))
        target = f"{inner.target}.{node.target}" if node.op in ("get_attr", "call_module") else node.target
        return self.evaluate_new(self.graph.create_node(node.op, target, args, kwargs))

    def child_argument(self, v: Value) -> Any:
        """The node or constant that is passed to a child. Raises CannotBuild."""
        if v.op == CONST:
            return v.data
        node = self.captured.nodes.get(v)
        if node is None or v in self.site.removed.values or self.order.get(node, self.place_index) >= self.place_index:
            raise CannotBuild(because(writing.VALUE_IN_CHILD))
        return node

    def removed_argument_size(self, inner: InlinedNode, node: fx.Node) -> Any:
        """A size that a child reads from a removed argument, if the trace knows another source of it."""
        if node.op != "call_method" or node.target != "size" or len(node.args) < 2 or node.args[0] not in inner.values:
            return None
        tensor, dim = inner.values[node.args[0]], node.args[1]  # type: ignore[index]
        if tensor not in self.site.removed.values or (outer := self.captured.nodes.get(tensor)) is None:
            return None
        size = self.captured.trace.sizes.get(outer, ())[dim]  # type: ignore[index]
        return None if size is None else size_node(self.captured, size, node.meta.get("v"))

    def reads_removed_tensor(self, node: fx.Node) -> bool:
        """Whether a node reads the dtype or shape of a removed tensor and would keep it alive."""
        if node.target not in ("type_as", "expand_as"):
            return False
        removed = {self.captured.nodes.get(v) for v in self.site.removed.values}
        return any(n in removed for n in node.all_input_nodes)

    def build_derived(self, v: Value) -> Any:
        match v.op:
            case op if op == PERMUTE:
                return self.permute(self.build(v.inputs[0]), order_of(v))
            case op if op in (CAST, "kept"):
                return self.build(v.inputs[0])
            case op if op == TUPLE:
                return tuple(map(self.build, v.inputs))
            case op if op == SLICE:
                return slice(*map(self.build, v.inputs))
            case op if op == ITEM:
                return self.get_item(self.build(v.inputs[0]), self.build(v.inputs[1]))
            case op if op == ATTRIBUTE:
                return self.build_attribute(v)
            case "size" if is_const(v.inputs[1]) and v.inputs[1].data is not None:
                return self.call_method("size", self.build(v.inputs[0]), v.inputs[1].data)
        if v.op in SPELLINGS:
            return self.build_from_template(SPELLINGS[v.op], [self.build(i) for i in v.inputs])
        raise CannotBuild(because(writing.VALUE_OUT_OF_REACH, operation=v.op))

    def build_attribute(self, v: Value) -> Any:
        owner = v.inputs[0]
        if owner.op == LEAF and isinstance(owner.data, Value) and owner.data.op == MODULE:
            return getattr({"torch": torch, "math": math}.get(str(owner.data.data)), str(v.data))
        owner_node = self.build(owner)
        if not isinstance(owner_node, fx.Node):
            return getattr(owner_node, str(v.data))
        return self.call_function(getattr, (owner_node, v.data), {})

    def build_from_template(self, template: str, operands: list[Any]) -> Any:
        """Evaluate a template such as "{0} + {1}" on operands: numbers give a number, nodes give new nodes."""
        names = [f"_{i}" for i in range(len(operands))]
        text = re.sub(r"\{\*(.+?)\}", lambda m: m[1].join(names), template)
        text = re.sub(r"\{(\d+)\}", lambda m: names[int(m[1])], text)
        before = set(self.graph.nodes)
        scope = {n: self.to_proxy(o) for n, o in zip(names, operands, strict=True)}
        try:
            # The templates are those of autofuse/ir/spelling.py, not user input.
            built = eval(text, {"__builtins__": {}, "torch": torch, "math": _Math(self), "float": self.to_float}, scope)
        except TypeError as error:
            raise CannotBuild(because(writing.VALUE_UNSPELLED, error=error)) from error
        result = built.node if isinstance(built, fx.Proxy) else built  # `.node` creates the node of an attribute
        for node in self.graph.nodes:
            if node not in before:
                self.evaluate_new(node)
        return result

    def to_proxy(self, operand: Any) -> Any:
        if isinstance(operand, tuple):
            return tuple(map(self.to_proxy, operand))
        return fx.Proxy(operand, self.tracer) if isinstance(operand, fx.Node) else operand

    def to_float(self, x: Any) -> Any:
        return fx.Proxy(self.call_function(float, (x.node,), {}), self.tracer) if isinstance(x, fx.Proxy) else float(x)

    def permute(self, node: Any, order: Tail) -> Any:
        """`node` with its last dimensions in another order."""
        current = list(range(-len(order), 0))
        for position in range(-len(order), 0):
            source = current.index(order[position]) - len(order)
            if source != position:
                current[position], current[source] = current[source], current[position]
                node = self.call_method("transpose", node, position, source)
        return node

    # New nodes.

    def call_function(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        return self.evaluate_new(self.graph.call_function(function, args, kwargs))

    def call_method(self, name: str, *args: Any) -> fx.Node:
        return self.evaluate_new(self.graph.call_method(name, args))

    def get_item(self, container: Any, index: Any) -> Any:
        return (
            self.call_function(operator.getitem, (container, index), {})
            if isinstance(container, fx.Node)
            else container[index]
        )

    def evaluate_new(self, node: fx.Node) -> fx.Node:
        """Evaluate a new node on fakes and record its value and sizes. Raises CannotBuild if that fails."""
        self.order[node] = -1  # it is before the place
        try:
            node.meta["v"] = evaluate(self.captured, node)
        except Exception as error:  # operations raise many kinds of errors for unsupported operands
            raise CannotBuild(because(writing.OPERANDS_REFUSED, error=error)) from error
        self.captured.trace.sizes[node] = self.size_sources(node)
        return node

    def size_sources(self, node: fx.Node) -> Sizes:
        """The sources of the sizes of a new node's result."""
        result = node.meta["v"]
        if not isinstance(result, Tensor):
            return ()
        if node.op == "get_attr":
            return tuple(int(n) for n in result.shape)
        known = {
            id(n.meta["v"]): s for n, s in self.captured.trace.sizes.items() if isinstance(n.meta.get("v"), Tensor)
        }
        args: Any = fx.node.map_arg(node.args, lambda n: n.meta["v"])
        kwargs: Any = fx.node.map_arg(node.kwargs, lambda n: n.meta["v"])
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        return result_sizes(name, lambda x: known.get(id(x), (None,) * x.dim()), args, kwargs, [result])[0]


def evaluate(captured: CapturedTrace, node: fx.Node) -> Any:
    """The value of `node` on fakes."""
    if node.op == "get_attr":
        found: Any = captured.trace.twin
        for part in str(node.target).split("."):
            found = getattr(found, part)
        return found
    args: Any = fx.node.map_arg(node.args, lambda n: n.meta["v"])
    kwargs: Any = fx.node.map_arg(node.kwargs, lambda n: n.meta["v"])
    target: Any = node.target
    # The user's random generators must not advance.
    with captured.trace.mode, torch.enable_grad(), torch.random.fork_rng([]):
        if node.op == "call_module":
            return captured.trace.twin.get_submodule(target).forward(*args, **kwargs)
        return getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)


class _Math:
    """The math module for nodes."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        function = getattr(math, name)

        def call(x: Any) -> Any:
            if isinstance(x, fx.Proxy):
                return fx.Proxy(self._builder.call_function(function, (x.node,), {}), self._builder.tracer)
            return function(x)

        return call
