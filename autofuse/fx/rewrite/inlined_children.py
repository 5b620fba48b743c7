"""What a child of the user's own computes, read in place of its call.

The child stays a call in the trace; only the dataflow graph looks inside, so that its activation, norm or projection
can be part of a match around it. Where a match takes the call away, the child's own guards are added to its parent's,
and it must stay pristine (trace/plain_children.py). Small children that are pure are read; any other stays what a call
is.
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

_LARGEST = 40  # nodes of a child that is read
_MOST, _DEEPEST = 10, 8  # modules of a child that adds to scores; steps from scores back to their product


def may_enter(child: nn.Module) -> bool:
    """Whether a child is small, pristine and of the user's own: parameters of its own at most, and known layers."""
    own = not is_known(type(child)) and "forward" in dir(plain_class(type(child)))
    return own and is_light(child) and all(map(is_pristine, child.modules()))


def may_add_to_scores(child: nn.Module) -> bool:
    """Whether a child that is not light may be a bias of scores: own code around few layers, such as an MLP of offsets.

    entered() then sees whether those layers have nothing to do with what the child is given.
    """
    own = not is_known(type(child)) and "forward" in dir(plain_class(type(child)))
    modules = list(itertools.islice(child.modules(), _MOST + 1))
    return own and len(modules) <= _MOST and all(map(is_pristine, modules))


def are_scores(v: Value) -> bool:
    """Whether a value is a product of matrices, but for factors, terms, views and casts."""
    for _ in range(_DEEPEST):
        if v.op in ("matmul", "einsum", "baddbmm"):
            return True
        if v.op not in OPS or OPS[v.op].heavy or not v.inputs:
            return False
        v = next((i for i in v.inputs if i.op in ("matmul", "einsum", "baddbmm")), v.inputs[0])
    return False


def entered(trace: ForwardTrace | None) -> ForwardTrace | None:
    """`trace` if it is all pure operations of tensors that are its arguments or the child's own; else None."""
    if trace is None:
        return None
    erase_dead(trace.graph)
    given = _given(trace.graph)
    if len(trace.graph.nodes) > _LARGEST or not all(_is_pure(trace, n, n in given) for n in trace.graph.nodes):
        return None
    output = next(n for n in trace.graph.nodes if n.op == "output")
    tests = [t for t in trace.guards.tests if "self" not in t and not reads_no_argument(t)]
    sized = any(".shape" in t or "[" in t for t in tests)
    return trace if isinstance(output.args[0], fx.Node) and not sized else None


def _given(graph: fx.Graph) -> set[fx.Node]:
    """What is computed from the contents of a child's arguments."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        operation = operation_of(node)
        reads = operation is None or operation.effect != "metadata"
        if node.op == "placeholder" or reads and any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def _is_pure(trace: ForwardTrace, node: fx.Node, given: bool) -> bool:
    if node.meta.get("writes"):
        return False
    if node.op in ("placeholder", "get_attr", "output"):
        return True
    if node.op == "call_module":  # without parameters, or a call that is repeated as it stands
        child = trace.module.get_submodule(str(node.target))
        return not given or is_known(type(child)) and not child._parameters
    return operation_of(node) is not None or is_harmless(node) or getattr(node.target, "__name__", "") == "getitem"


def parameters_of(trace: ForwardTrace, args: list[Any], kwargs: dict[str, Any]) -> list[Any] | None:
    """What the child's placeholders stand for, given what it is called with."""
    forward = own_forward(plain_class(type(trace.module)))
    try:
        bound = signature_of(forward).bind(None, *args, **kwargs).arguments
    except TypeError:
        return None
    found = [bound.get(text) for text in trace.inputs]
    return None if any(f is None for f in found) else found
