"""Converts a graph that TorchDynamo captured into a trace of the FX pass, so that the same rules match both.

Dynamo turns the parameters and buffers of modules into inputs of the graph. Here they are attributes again: of a
stand-in for the module, with their names in the module. This module does not depend on the rules.
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
from autofuse.fx.trace.ambient_state import current_ambient_state
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.source_lines import SourceLine, is_user_file
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.torch_private import FakeTensorMode

# Matches the end of L['self']._modules['blocks']._modules['0']._parameters['weight'], from `._modules` on.
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
    """A module's tensor that is an input of a graph.

    Attributes:
        owner: Dynamo's name of the module that the captured frame holds; "L['self']" for a forward.
        path: the name of the tensor in that module.
        place: the index of the graph input.
    """

    owner: str
    path: str
    place: int


@dataclass
class DynamoTrace:
    """One captured graph as a trace.

    Attributes:
        trace: the trace.
        attributes: the inputs that belong to modules.
        modules: node -> (owner, path) of the innermost module with a forward that computes it.
    """

    trace: ForwardTrace
    attributes: tuple[Attribute, ...] = ()
    modules: dict[fx.Node, tuple[str, str]] = field(default_factory=dict)


def traces_of(gm: fx.GraphModule, inputs: Sequence[Any]) -> Iterator[DynamoTrace]:
    """Yields the traces of `gm` and of each graph that it calls, such as a checkpointed part.

    Args:
        gm: the captured graph.
        inputs: its inputs, real tensors or fake ones.
    """
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = dict(zip(placeholders, inputs, strict=False))
    attributes = tuple(a for i, n in enumerate(placeholders) if (a := _attribute(n, i)) is not None)
    owned = {placeholders[a.place]: (a, tensors.get(placeholders[a.place])) for a in attributes}
    yield from _trace_graph(gm, owned, attributes)


_OwnedTensors = Mapping[fx.Node, tuple[Attribute, Any]]


def _trace_graph(gm: fx.GraphModule, owned: _OwnedTensors, attributes: tuple[Attribute, ...]) -> Iterator[DynamoTrace]:
    root, graph, copies = nn.Module(), fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(gm.graph, copies))
    for node, copy in copies.items():
        _set_metadata(node, copy)
    _copy_children(gm, graph, root)
    for node, (attribute, tensor) in owned.items():
        _replace_by_attribute(graph, copies[node], _path_of(attribute), tensor, root)
    modules = {copy: _module_of(copy) for copy in graph.nodes}
    sizes = {n: _sizes(n.meta["v"]) for n in graph.nodes if isinstance(n.meta.get("v"), Tensor)}
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    yield DynamoTrace(
        ForwardTrace(root, root, mode, graph, Guards(), (), current_ambient_state(), frozenset(), sizes),
        attributes, modules,
    )  # fmt: skip
    yield from _called_graphs(gm, owned, attributes)


def _called_graphs(
    gm: fx.GraphModule, owned: _OwnedTensors, attributes: tuple[Attribute, ...]
) -> Iterator[DynamoTrace]:
    """Yields the traces of the graphs that higher-order operators in `gm` run."""
    for node in gm.graph.nodes:
        for index, argument in enumerate(node.args if node.op == "call_function" else ()):
            called_graph = getattr(gm, str(argument.target), None) if _is_attribute(argument) else None
            if not isinstance(called_graph, fx.GraphModule):
                continue
            operands = [a for a in node.args[index + 1 :] if not _is_graph(gm, a)]
            placeholders = [n for n in called_graph.graph.nodes if n.op == "placeholder"]
            pairs = zip(placeholders, operands, strict=False) if len(placeholders) == len(operands) else ()
            owned_inside = {p: owned[o] for p, o in pairs if isinstance(o, fx.Node) and o in owned}
            yield from _trace_graph(called_graph, owned_inside, attributes)


def _is_attribute(argument: Any) -> bool:
    return isinstance(argument, fx.Node) and argument.op == "get_attr"


def _is_graph(gm: fx.GraphModule, argument: Any) -> bool:
    return _is_attribute(argument) and isinstance(getattr(gm, str(argument.target), None), fx.GraphModule)


# Attributes.


def _attribute(node: fx.Node, place: int) -> Attribute | None:
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    text = str(name() if callable(name) else name)  # a method in older versions of torch, else a property
    match = _ATTRIBUTE.search(text)
    return Attribute(text[: match.start()], ".".join(_NAME.findall(match[1])), place) if match else None


def _path_of(attribute: Attribute) -> str:
    """The name in the stand-in. Tensors of `self` keep their names; other modules become submodules."""
    return attribute.path if attribute.owner == _SELF else f"{_prefix(attribute.owner)}.{attribute.path}"


def _prefix(owner: str) -> str:
    return "_of_" + re.sub(r"\W+", "_", owner).strip("_")


def _replace_by_attribute(graph: fx.Graph, node: fx.Node, path: str, tensor: Any, root: nn.Module) -> None:
    """Replaces a graph input by an attribute of the stand-in."""
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
        get_attr = graph.get_attr(path)
    get_attr.meta = node.meta
    node.replace_all_uses_with(get_attr)
    graph.erase_node(node)


def _copy_children(gm: fx.GraphModule, graph: fx.Graph, root: nn.Module) -> None:
    """Copies to the stand-in the constants that the graph reads and the submodules that it calls."""
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            first = str(node.target).partition(".")[0]
            setattr(root, first, getattr(gm, first))


# Metadata of nodes.


def _set_metadata(node: fx.Node, copy: fx.Node) -> None:
    """Sets the metadata that the recorder of the FX pass sets: an example value, a source line, the overwritten tensor.

    Also sets whether the node is inside a fused operation.
    """
    copy.meta = dict(node.meta)
    copy.meta["v"] = fx.node.map_aggregate(node.meta.get("example_value"), _without_symbols)
    frames = [SourceLine(file, int(line)) for file, line in _FRAME.findall(str(node.meta.get("stack_trace") or ""))]
    copy.meta["place"] = next((place for place in reversed(frames) if is_user_file(place.file)), None)
    copy.meta["fused"] = any(place.file.startswith(_OPERATIONS) for place in frames)
    overwritten = _overwritten_tensor(copy)
    if overwritten is not None:
        copy.meta["writes"] = [overwritten]


def _without_symbols(value: Any) -> Any:
    """Replaces a symbolic size by its number in the example."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        hint = getattr(value.node, "hint", None)
        return hint if hint is not None else 0
    return value


def _sizes(x: Tensor) -> tuple[int | str, ...]:
    return tuple(s if type(s) is int else str(s) for s in x.shape)


def _module_of(node: fx.Node) -> tuple[str, str]:
    """The module with the forward that computes a node: its owner, and its path there."""
    stack = node.meta.get("nn_module_stack") or {}
    name = str(list(stack.values())[-1][0]) if stack else _SELF
    owner = re.match(r"\w\['\w+'\]", name)
    return (owner[0], name[owner.end() :].lstrip(".")) if owner else (_SELF, "")


def _overwritten_tensor(node: fx.Node) -> fx.Node | None:
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
    return _named_arguments(node).get("inplace") is True


def _named_arguments(node: fx.Node) -> Mapping[str, Any]:
    """The arguments of a Python function of torch, by name."""
    if not inspect.isfunction(node.target):
        return node.kwargs
    try:
        return inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):
        return node.kwargs
