"""Decides which user-defined children are inlined into the dataflow graph of their parent.

In the fx graph the child stays a call. Only the dataflow graph contains its operations, so that its activation, norm or
projection can be part of a match around it. If a rewrite removes the call, the child's guards are added to its
parent's, and the child must stay pristine (trace/plain_children.py). Only small and pure children are inlined.
"""

from __future__ import annotations

import itertools
from typing import Any

from torch import fx, nn

from autofuse.fx.trace.attribute_reads import is_known, is_light
from autofuse.fx.trace.guards import reads_no_argument
from autofuse.fx.trace.operation_names import erase_dead, is_harmless, operation_of
from autofuse.fx.trace.own_forward import own_forward
from autofuse.fx.trace.plain_children import is_pristine
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.fx.trace.twin import plain_class, signature_of
from autofuse.ir.graph import Value
from autofuse.ir.vocabulary import OPS

_LARGEST = 40  # nodes of an inlined child
_MOST, _DEEPEST = 10, 8  # modules in a child that adds to scores; steps from scores back to their matrix product


def may_inline(child: nn.Module) -> bool:
    """Whether a child is user-defined, pristine and small: it has own parameters and known layers only."""
    own = not is_known(type(child)) and "forward" in dir(plain_class(type(child)))
    return own and is_light(child) and all(map(is_pristine, child.modules()))


def may_add_to_scores(child: nn.Module) -> bool:
    """Whether a larger child may add a bias to scores: user-defined code with few layers, such as an MLP of offsets.

    `inlinable_trace` then checks that the layers do not depend on the child's arguments.
    """
    own = not is_known(type(child)) and "forward" in dir(plain_class(type(child)))
    # A large child is not traversed completely.
    modules = list(itertools.islice(child.modules(), _MOST + 1))
    return own and len(modules) <= _MOST and all(map(is_pristine, modules))


def are_scores(v: Value) -> bool:
    """Whether a value is a matrix product, possibly scaled, shifted, viewed or cast."""
    for _ in range(_DEEPEST):
        if v.op in ("matmul", "einsum", "baddbmm"):
            return True
        if v.op not in OPS or OPS[v.op].heavy or not v.inputs:
            return False
        v = next((i for i in v.inputs if i.op in ("matmul", "einsum", "baddbmm")), v.inputs[0])
    return False


def inlinable_trace(trace: ForwardTrace | None) -> ForwardTrace | None:
    """`trace` if it has only pure operations on its arguments and its own tensors, otherwise None."""
    if trace is None:
        return None
    erase_dead(trace.graph)
    from_arguments = _nodes_from_arguments(trace.graph)
    if len(trace.graph.nodes) > _LARGEST or not all(_is_pure(trace, n, n in from_arguments) for n in trace.graph.nodes):
        return None
    output = next(n for n in trace.graph.nodes if n.op == "output")
    # Guards on arguments cannot be moved to the parent, because they name the child's parameters.
    tests = [t for t in trace.guards.tests if "self" not in t and not reads_no_argument(t)]
    sized = any(".shape" in t or "[" in t for t in tests)
    return trace if isinstance(output.args[0], fx.Node) and not sized else None


def _nodes_from_arguments(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that depend on the contents of a child's arguments."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        operation = operation_of(node)
        reads = operation is None or operation.effect != "metadata"
        if node.op == "placeholder" or reads and any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def _is_pure(trace: ForwardTrace, node: fx.Node, depends_on_arguments: bool) -> bool:
    if node.meta.get("writes"):
        return False
    if node.op in ("placeholder", "get_attr", "output"):
        return True
    if node.op == "call_module":  # a layer without parameters, or a call that does not depend on the arguments
        child = trace.module.get_submodule(str(node.target))
        return not depends_on_arguments or is_known(type(child)) and not child._parameters
    return operation_of(node) is not None or is_harmless(node) or getattr(node.target, "__name__", "") == "getitem"


def placeholder_values(trace: ForwardTrace, args: list[Any], kwargs: dict[str, Any]) -> list[Any] | None:
    """The values of the child's placeholders in a call; None if one is missing."""
    forward = own_forward(plain_class(type(trace.module)))
    try:
        bound = signature_of(forward).bind(None, *args, **kwargs).arguments
    except TypeError:
        return None
    found = [bound.get(text) for text in trace.inputs]
    return None if any(f is None for f in found) else found
