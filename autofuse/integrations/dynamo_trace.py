"""A graph that TorchDynamo captured -> a trace as the live door makes them, so that the same rules read both.

Dynamo lifts a module's parameters and buffers to inputs of the graph; here they are attributes again, of a stand-in for
the module, under the names that they have in it. Knows Dynamo's graphs and what it notes on their nodes; must not know
any rule.
"""

from __future__ import annotations

import inspect
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from autofuse import ops
from autofuse.fx.trace.ambient_state import ambient
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.source_lines import SourceLine, is_users
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.torch_private import FakeTensorMode

# L['self']._modules['blocks']._modules['0']._parameters['weight']: what is in brackets is the name, the rest its owner
_ATTRIBUTE = re.compile(r"((?:\._modules\['[^']+'\])*\._(?:parameters|buffers)\['[^']+'\])$")
_NAME = re.compile(r"\['([^']+)'\]")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_OPERATIONS = os.path.dirname(os.path.abspath(ops.__file__)) + os.sep
_SELF = "L['self']"
_IN_PLACE = frozenset(
    getattr(operator, name)
    for name in "iadd iand ifloordiv imatmul imul imod ior ipow isub itruediv ixor setitem".split()
)


@dataclass(frozen=True)
class Attribute:
    """A tensor of a module that a graph is given: `owner` is Dynamo's word for the module that the captured frame
    holds, "L['self']" of a forward, `path` the tensor's name in that module, `place` which input of the graph it is."""

    owner: str
    path: str
    place: int


@dataclass
class DynamoTrace:
    """One graph as a trace. `attributes` are the inputs that belong to modules; `modules` says in which module of the
    owner each node was computed, the innermost one."""

    trace: ForwardTrace
    attributes: tuple[Attribute, ...] = ()
    modules: dict[fx.Node, tuple[str, str]] = field(default_factory=dict)  # node -> (owner, path)


def adopted(gm: fx.GraphModule, inputs: Sequence[Any]) -> Iterator[DynamoTrace]:
    """The graph of `gm`, and each graph that it calls, such as what is checkpointed.

    inputs: what the graph will be called with, real tensors or fake ones.
    """
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    given = dict(zip(placeholders, inputs, strict=False))
    attributes = tuple(a for i, n in enumerate(placeholders) if (a := _attribute(n, i)) is not None)
    held = {placeholders[a.place]: (a, given.get(placeholders[a.place])) for a in attributes}
    yield from _adopted(gm, held, attributes)


_HeldTensors = Mapping[fx.Node, tuple[Attribute, Any]]


def _adopted(gm: fx.GraphModule, held: _HeldTensors, attributes: tuple[Attribute, ...]) -> Iterator[DynamoTrace]:
    root, graph, copies = nn.Module(), fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(gm.graph, copies))
    for node, copy in copies.items():
        _note(node, copy)
    _bring_children(gm, graph, root)
    for node, (attribute, tensor) in held.items():
        _as_attribute(graph, copies[node], _path_of(attribute), tensor, root)
    modules = {copy: _module_of(copy) for copy in graph.nodes}
    sizes = {n: _sizes(n.meta["v"]) for n in graph.nodes if isinstance(n.meta.get("v"), Tensor)}
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    yield DynamoTrace(
        ForwardTrace(root, root, mode, graph, Guards(), (), ambient(), frozenset(), sizes), attributes, modules,
    )  # fmt: skip
    yield from _called_graphs(gm, held, attributes)


def _called_graphs(gm: fx.GraphModule, held: _HeldTensors, attributes: tuple[Attribute, ...]) -> Iterator[DynamoTrace]:
    """The graphs that higher-order operators of `gm` run, each with the operands that it is given there."""
    for node in gm.graph.nodes:
        for place, argument in enumerate(node.args if node.op == "call_function" else ()):
            inner = getattr(gm, str(argument.target), None) if _is_attribute(argument) else None
            if not isinstance(inner, fx.GraphModule):
                continue
            operands = [a for a in node.args[place + 1 :] if not _is_graph(gm, a)]
            placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
            pairs = zip(placeholders, operands, strict=False) if len(placeholders) == len(operands) else ()
            inside = {p: held[o] for p, o in pairs if isinstance(o, fx.Node) and o in held}
            yield from _adopted(inner, inside, attributes)


def _is_attribute(argument: Any) -> bool:
    return isinstance(argument, fx.Node) and argument.op == "get_attr"


def _is_graph(gm: fx.GraphModule, argument: Any) -> bool:
    return _is_attribute(argument) and isinstance(getattr(gm, str(argument.target), None), fx.GraphModule)


# Attributes.


def _attribute(node: fx.Node, place: int) -> Attribute | None:
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    text = str(name() if callable(name) else name)  # a method in older torch, a property in newer
    found = _ATTRIBUTE.search(text)
    return Attribute(text[: found.start()], ".".join(_NAME.findall(found[1])), place) if found else None


def _path_of(attribute: Attribute) -> str:
    """A name in the stand-in: tensors of `self` keep theirs, those of other modules stand below one of their own."""
    return attribute.path if attribute.owner == _SELF else f"{_prefix(attribute.owner)}.{attribute.path}"


def _prefix(owner: str) -> str:
    return "_of_" + re.sub(r"\W+", "_", owner).strip("_")


def _as_attribute(graph: fx.Graph, node: fx.Node, path: str, tensor: Any, root: nn.Module) -> None:
    """Make an input the attribute that it is."""
    *parts, name = path.split(".")
    owner = root
    for part in parts:
        if not isinstance(getattr(owner, part, None), nn.Module):
            owner.add_module(part, nn.Module())
        owner = owner.get_submodule(part)
    if isinstance(tensor, nn.Parameter):
        owner.register_parameter(name, tensor)
    elif isinstance(tensor, Tensor):
        owner.register_buffer(name, tensor)
    with graph.inserting_before(node):
        made = graph.get_attr(path)
    made.meta = node.meta
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _bring_children(gm: fx.GraphModule, graph: fx.Graph, root: nn.Module) -> None:
    """Give the stand-in what the graph itself reads or calls: constants, and modules that were not inlined."""
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            first = str(node.target).partition(".")[0]
            setattr(root, first, getattr(gm, first))


# What is known of a node.


def _note(node: fx.Node, copy: fx.Node) -> None:
    """What the live door's recorder would have noted: an example value, a place, what is overwritten; and
    whether it is the inside of a fused operation."""
    copy.meta = dict(node.meta)
    copy.meta["v"] = fx.node.map_aggregate(node.meta.get("example_value"), _plain)
    frames = [SourceLine(file, int(line)) for file, line in _FRAME.findall(str(node.meta.get("stack_trace") or ""))]
    copy.meta["place"] = next((place for place in reversed(frames) if is_users(place.file)), None)
    copy.meta["fused"] = any(place.file.startswith(_OPERATIONS) for place in frames)
    written = _written(copy)
    if written is not None:
        copy.meta["writes"] = [written]


def _plain(value: Any) -> Any:
    """Symbolic sizes as the numbers that they were in the example."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        hint = getattr(value.node, "hint", None)
        return hint if hint is not None else 0
    return value


def _sizes(x: Tensor) -> tuple[int | str, ...]:
    return tuple(s if type(s) is int else str(s) for s in x.shape)


def _module_of(node: fx.Node) -> tuple[str, str]:
    """The module whose forward computes a node: the owner, and the path in it."""
    stack = node.meta.get("nn_module_stack") or {}
    name = str(list(stack.values())[-1][0]) if stack else _SELF
    owner = re.match(r"\w\['\w+'\]", name)
    return (owner[0], name[owner.end() :].lstrip(".")) if owner else (_SELF, "")


def _written(node: fx.Node) -> fx.Node | None:
    """The tensor that a call overwrites."""
    out = node.kwargs.get("out")
    if isinstance(out, fx.Node):
        return out
    first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    return first if first is not None and _writes_to_first(node) else None


def _writes_to_first(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    name = str(node.target) if node.op == "call_method" else str(getattr(node.target, "__name__", ""))
    if node.target in _IN_PLACE or name.endswith("_") and not name.endswith("__") and not name.startswith("_"):
        return True
    return _bound(node).get("inplace") is True


def _bound(node: fx.Node) -> Mapping[str, Any]:
    """The arguments of one of torch's own Python functions by name."""
    if not inspect.isfunction(node.target):
        return node.kwargs
    try:
        return inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):
        return node.kwargs
