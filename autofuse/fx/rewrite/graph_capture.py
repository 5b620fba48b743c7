"""Lowers an fx trace to the dataflow graph of autofuse/ir, and records which node computes which value."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from autofuse.fx.install.mask_contents import buffer_form, buffer_number
from autofuse.fx.rewrite.inlined_children import (
    are_scores,
    inlinable_trace,
    may_add_to_scores,
    may_inline,
    placeholder_values,
)
from autofuse.fx.rewrite.narrow_calls import is_narrow_call
from autofuse.fx.trace.attribute_reads import guard_inside, guard_path, is_known
from autofuse.fx.trace.contents import STORES
from autofuse.fx.trace.operation_names import call_text, erase_dead, is_harmless, operation_of
from autofuse.fx.trace.plain_children import is_pristine
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.ir.binding import bound_arguments, replace_like_argument
from autofuse.ir.facts import Known
from autofuse.ir.graph import ATTRIBUTE, CALL, CONST, ITEM, MODULE, OPAQUE, PARAMETER, SINK, SLICE, TUPLE, Graph, Value
from autofuse.ir.vocabulary import MODULES, OPS
from autofuse.match.legality import may_share_memory
from autofuse.reasons import matches
from autofuse.reasons.reason import because

TraceChild = Callable[[nn.Module, fx.Node], ForwardTrace | None]


@dataclass(frozen=True)
class InlinedNode:
    """The node inside an inlined child that computes a value."""

    node: fx.Node
    call: fx.Node  # of the child, in the parent's trace
    target: str  # the child's name
    values: dict[fx.Node, Value]  # the values of the child's nodes


@dataclass
class CapturedTrace:
    """A trace and its dataflow graph."""

    trace: ForwardTrace
    graph: Graph = field(default_factory=Graph)
    known: dict[Value, Known] = field(default_factory=dict)
    nodes: dict[Value, fx.Node] = field(default_factory=dict)  # value -> the node that computes it first
    values: dict[fx.Node, Value] = field(default_factory=dict)
    overwritten: dict[Value, fx.Node] = field(default_factory=dict)  # value -> the first node that writes to its memory
    paths: dict[Value, str] = field(default_factory=dict)  # attributes of the module -> their paths
    inlined_traces: dict[fx.Node, ForwardTrace] = field(
        default_factory=dict
    )  # calls of children -> the traces that were inlined
    inner: dict[Value, InlinedNode] = field(default_factory=dict)  # values that only an inlined child computes

    def ensures(self, v: Value, dim: int, number: int) -> bool:
        """Whether dimension `dim` (negative) of `v` has `number` entries. Adds a guard if only the example shows it."""
        node = self.nodes.get(v)
        sizes = self.trace.sizes.get(node, ()) if node is not None else ()
        example = node.meta.get("v") if node is not None else None
        if not isinstance(example, Tensor) or len(sizes) != example.dim() or not -len(sizes) <= dim < 0:
            return False
        size = sizes[dim]
        if isinstance(size, str) and _SIZE.fullmatch(size) and int(example.shape[dim]) == number:
            self.trace.guards.add(f"{size} == {number}")
            return True
        return bool(size == number)


def capture_trace(trace: ForwardTrace, trace_child: TraceChild | None = None) -> CapturedTrace:
    """Lower a trace. Unused nodes are erased from the trace first.

    Args:
        trace: The trace of one forward.
        trace_child: Traces a child of a user-defined class, so that small children can be inlined. None inlines none.

    Returns:
        The trace with its dataflow graph.
    """
    erase_dead(trace.graph)
    out = CapturedTrace(trace)
    lowering = _Lowering(out, trace_child)
    for node in trace.graph.nodes:
        lowering.add(node)
    return out


class _Lowering:
    def __init__(self, out: CapturedTrace, trace_child: TraceChild | None = None) -> None:
        self.out, self.graph, self.values = out, out.graph, out.values
        self.trace_child = trace_child
        self.root = self.graph.value(PARAMETER, data="self")
        self.fixed = dict(map(_parse_fixed_size, filter(_FIXED.fullmatch, out.trace.guards.tests)))  # guarded sizes
        self.storages: dict[int, list[fx.Node]] = {}  # memory -> the nodes whose results use it

    def add(self, node: fx.Node) -> None:
        value = self.lower(node)
        self.values[node] = value
        if value.op != CONST:
            # The first node is the earliest point at which the value is available.
            self.out.nodes.setdefault(value, node)
            self.note_facts(value, node)
        for tensor in _result_tensors(node.meta.get("v")):
            self.storages.setdefault(_storage(tensor), []).append(node)
        if node.meta.get("writes"):
            self.note_write(node, value)
        if node.target in STORES or node.meta.get("foreign") or node.meta.get("call"):
            self.graph.forget()  # containers and objects may have changed

    def note_facts(self, value: Value, node: fx.Node) -> None:
        """Record the facts of an example value. Earlier facts, such as the content of a buffer, stay."""
        found = _facts_of(node.meta.get("v"))
        if node in self.out.trace.sizes:
            found = replace(found, lengths=tuple(self.fixed.get(n, n) for n in self.out.trace.sizes[node]))
        if node.op == "get_attr" and (form := self.buffer_form_at(str(node.target))) is not None:
            found = replace(found, form=form)
        self.out.known.setdefault(value, found)

    def buffer_form_at(self, target: str) -> str | None:
        attribute = _attribute_at(self.out.trace.module, target)
        return (
            buffer_form(attribute)
            if isinstance(attribute, Tensor) and not isinstance(attribute, nn.Parameter)
            else None
        )

    def fill_at(self, target: str) -> float | None:
        """The number in a buffer that fills masks. Adds a guard for it."""
        attribute = _attribute_at(self.out.trace.module, target)
        number = buffer_number(attribute) if isinstance(attribute, Tensor) else None
        if number is not None:
            owner, _, name = target.rpartition(".")
            guards = self.out.trace.guards
            guards.add(f'_holds_number({guard_path(owner)}._buffers["{name}"], {guards.name_of(number)})')
        return number

    def note_write(self, node: fx.Node, result: Value) -> None:
        """Record an in-place write: the written tensor has a new value, and the values of its views are unknown."""
        for target in node.meta["writes"]:
            old = self.values[target]
            new = result
            if not _result_tensors(node.meta.get("v")):
                new = self.graph.fresh(OPAQUE, result, old, data="written in place")
                self.out.nodes[new] = target
                self.note_facts(new, target)
            self.graph.write(old, new)
            memory = _storage(target.meta["v"]) if isinstance(target.meta.get("v"), Tensor) else None
            sharing = self.storages.get(memory, []) if memory is not None else []
            stale_values = {old, *(self.values[other] for other in sharing)} - {new}
            self.graph.recompute(stale_values)
            for value in stale_values:
                self.out.overwritten.setdefault(value, node)
            for other in sharing:
                current = self.values[other]
                if current is old and other is not node:
                    self.values[other] = new
                elif current is not new and isinstance(other.meta.get("v"), Tensor):
                    self.values[other] = view = self.graph.fresh(
                        OPAQUE, current, new, data="shares memory with a written tensor"
                    )
                    if not may_share_memory(current, old):  # the graph knows no view that makes them share memory
                        self.graph.write(current, view)
                    self.out.nodes[view] = other
                    self.note_facts(view, other)

    # Lowering of one node.

    def lower(self, node: fx.Node) -> Value:
        if node.op == "placeholder":
            return self.graph.value(PARAMETER, data=node.name)
        if node.op == "get_attr":
            fill = self.fill_at(str(node.target))
            return self.path_value(str(node.target)) if fill is None else self.graph.const(fill)
        if node.op == "output":
            return self.graph.fresh(
                SINK, *(self.values[n] for n in node.all_input_nodes), data=because(matches.VALUE_RETURNED)
            )
        arguments = [self.lower_argument(a) for a in node.args]
        named = {k: self.lower_argument(v) for k, v in node.kwargs.items()}
        if node.op == "call_module":
            return self.lower_module(node, arguments, named)
        return self.lower_call(node, arguments, named)

    def lower_call(self, node: fx.Node, arguments: list[Value], named: dict[str, Value]) -> Value:
        if node.target is operator.getitem:
            return self.item_value(*arguments)
        if node.target is getattr:
            return self.attribute_value(arguments[0], str(node.args[1]))
        if is_narrow_call(node.target):
            return self.graph.fresh(CALL, *arguments, *named.values(), data=(call_text(node), tuple(named)))
        op = operation_of(node)
        inputs = bound_arguments(self.graph, op, arguments, named) if op else None
        if op is not None and inputs is not None:
            op, inputs = replace_like_argument(self.graph, op, inputs)
            return self.operation_value(op.name, inputs, bool(node.meta.get("writes")))
        make = self.graph.value if is_harmless(node) and not node.meta.get("writes") else self.graph.fresh
        return make(CALL, *arguments, *named.values(), data=(call_text(node), tuple(named)))

    def operation_value(self, name: str, inputs: list[Value], writes: bool = False) -> Value:
        return (self.graph.fresh if writes or OPS[name].effect == "random" else self.graph.value)(name, *inputs)

    def item_value(self, container: Value, index: Value) -> Value:
        if container.op == TUPLE and container.data is None and index.op == CONST and isinstance(index.data, int):
            return container.inputs[index.data]
        return self.graph.read(ITEM, container, index)

    def attribute_value(self, owner: Value, name: str) -> Value:
        return self.graph.value("mT", owner) if name == "mT" else self.graph.read(ATTRIBUTE, owner, data=name)

    def lower_module(self, node: fx.Node, arguments: list[Value], named: dict[str, Value]) -> Value:
        target = str(node.target)
        child = self.out.trace.module.get_submodule(target)
        kind = MODULES[f"torch.nn.{type(child).__name__}"] if is_known(type(child)) else None
        # A layer with a hook or an unusual call may compute something else than its operation.
        if kind is None or len(arguments) + len(named) != kind.operands or not is_pristine(child):
            inner = self.inline_child(node, child, target, arguments, named)
            return inner or self.graph.fresh(
                CALL, self.path_value(target), *arguments, *named.values(), data=(call_text(node), tuple(named))
            )
        first = (*arguments, *named.values())[0]
        if kind.op == "identity":
            return self.graph.value("identity", first)
        child_arguments = {
            k: self.constructor_argument(child, target, k, default, k in kind.kept) for k, default in kind.fixed
        } | named
        child_arguments |= {k: self.child_attribute(child, target, k) for k in kind.read}
        inputs = bound_arguments(self.graph, OPS[kind.op], arguments, child_arguments)
        assert inputs is not None, f"vocabulary.MODULES does not fit {kind.op}"
        return self.operation_value(kind.op, inputs, bool(node.meta.get("writes")))

    def inline_child(
        self, node: fx.Node, child: nn.Module, target: str, arguments: list[Value], named: dict[str, Value]
    ) -> Value | None:
        """The result of a small child, lowered into this graph; None if the child cannot be inlined."""
        if self.trace_child is None or node.meta.get("writes"):
            return None
        if not may_inline(child) and not (may_add_to_scores(child) and any(map(are_scores, arguments))):
            return None
        inner = inlinable_trace(self.trace_child(child, node))
        child_arguments = placeholder_values(inner, arguments, named) if inner is not None else None
        if inner is None or child_arguments is None:
            return None
        self.out.inlined_traces[node] = inner
        return _ChildLowering(self, inner, node, child_arguments).result()

    def constructor_argument(self, child: nn.Module, target: str, name: str, default: object, guarded: bool) -> Value:
        """An argument of a layer's constructor. A tensor is read at each call; other attributes are guarded."""
        content = getattr(child, name, default)
        if isinstance(content, Tensor):
            return self.child_attribute(child, target, name)
        if name in vars(child):
            self.out.trace.guards.equal(guard_inside(target, name), content)
        elif guarded:
            self.out.trace.guards.equal(f"{guard_path(target)}.{name}", content)
        return self.graph.const(content)

    def child_attribute(self, child: nn.Module, target: str, name: str) -> Value:
        """An attribute that a layer reads at each call. None and shapes are guarded and become constants."""
        content = getattr(child, name)
        shape = isinstance(content, (tuple, list)) and child._parameters.get("weight") is None  # or the weight has it
        if name in vars(child) and (content is None or shape):
            self.out.trace.guards.equal(guard_inside(target, name), content)
        if content is None:
            return self.graph.const(None)
        if isinstance(content, (tuple, list)):
            return self.graph.value(TUPLE, *map(self.graph.const, content))
        value = self.path_value(f"{target}.{name}")
        self.out.known.setdefault(value, _facts_of(content))
        return value

    def path_value(self, target: str) -> Value:
        value = self.root
        for place, part in enumerate(parts := target.split(".")):
            value = self.graph.read(ATTRIBUTE, value, data=part)
            self.out.paths[value] = ".".join(parts[: place + 1])
        return value

    def lower_argument(self, a: Any) -> Value:
        if isinstance(a, fx.Node):
            return self.values[a]
        if isinstance(a, (tuple, list)):
            return self.graph.value(TUPLE, *map(self.lower_argument, a))
        if isinstance(a, slice):
            return self.graph.value(SLICE, *map(self.lower_argument, (a.start, a.stop, a.step)))
        if isinstance(a, torch.dtype):
            return self.graph.value(
                ATTRIBUTE, self.graph.value(MODULE, data="torch"), data=str(a).removeprefix("torch.")
            )
        if a is None or a is ... or isinstance(a, (bool, int, float, str)):
            return self.graph.const(a)
        return self.graph.fresh(OPAQUE, data=type(a).__name__)


_SIZE = re.compile(r"\w+\.shape\[\d+\]")  # of an argument
_FIXED = re.compile(r"(\S+\.shape\[\d+\]) == (\d+)")


def _parse_fixed_size(test: str) -> tuple[Any, int]:
    size, _, number = test.partition(" == ")
    return size, int(number)


class _ChildLowering(_Lowering):
    """Lowers a child into its parent's graph. Its values have no nodes in the parent's trace."""

    def __init__(self, outer: _Lowering, trace: ForwardTrace, call: fx.Node, child_arguments: list[Value]) -> None:
        super().__init__(CapturedTrace(trace, outer.graph, outer.out.known))
        self.outer, self.node, self.target = outer, call, str(call.target)
        self.child_arguments = iter(child_arguments)

    def result(self) -> Value:
        """Lower the child. Returns the value of its result."""
        for node in self.out.trace.graph.nodes:
            if node.op == "output":
                for value, computed in self.out.nodes.items():
                    self.outer.out.inner.setdefault(value, InlinedNode(computed, self.node, self.target, self.values))
                return self.values[node.args[0]]
            self.add(node)
        raise AssertionError("every trace has an output")

    def lower(self, node: fx.Node) -> Value:
        return next(self.child_arguments) if node.op == "placeholder" else super().lower(node)

    def note_facts(self, value: Value, node: fx.Node) -> None:
        """Record no sizes: those in a child's trace refer to the child's own arguments."""
        known = _facts_of(node.meta.get("v"))
        if node.op == "get_attr" and (form := self.buffer_form_at(str(node.target))) is not None:
            known = replace(known, form=form)
        self.out.known.setdefault(value, known)

    def path_value(self, target: str) -> Value:
        return self.outer.path_value(f"{self.target}.{target}")


def _facts_of(value: object) -> Known:
    if isinstance(value, Tensor):
        return Known(rank=value.dim(), number=False, dtype=str(value.dtype))
    return Known(number=isinstance(value, (int, float)) and not isinstance(value, bool))


def _result_tensors(value: object) -> list[Tensor]:
    """The tensor result of a node. The elements of a tuple have their own nodes."""
    return [value] if isinstance(value, Tensor) else []


def _storage(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _attribute_at(module: nn.Module, target: str) -> object:
    found: Any = module
    for part in target.split("."):
        found = getattr(found, part, None)
    return found
