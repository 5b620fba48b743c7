"""Turns attribute reads of a rewritten forward into inputs, which its guards have read already.

`nn.Module.__getattr__` is slow; guards read parameters and submodules from the module's dicts. Only attributes that the
guards check are passed that way: the module's own tensors, and those of plain submodules (trace/plain_children.py).
"""

from __future__ import annotations

from torch import Tensor, fx, nn

from autofuse.fx.trace.attribute_reads import guard_inside, guard_path
from autofuse.fx.trace.operation_names import erase_dead, replace_node
from autofuse.fx.trace.plain_children import PLAIN_TENSORS
from autofuse.fx.trace.tracer import ForwardTrace


def reads_as_inputs(trace: ForwardTrace, count: int) -> list[str]:
    """Replace attribute reads by inputs, numbered from `count`. Returns the guard expression of each input."""
    expressions: list[str] = []
    inputs: dict[str, fx.Node] = {}
    first = next(n for n in trace.graph.nodes if n.op != "placeholder")
    for node in [n for n in trace.graph.nodes if n.op == "get_attr"]:
        target = str(node.target)
        text = _guard_expression(trace, target)
        if text is None:
            guard_presence(trace, target)
            continue
        if target not in inputs:
            with trace.graph.inserting_before(first):
                inputs[target] = trace.graph.placeholder(f"in{count + len(expressions)}")
            inputs[target].meta = dict(node.meta)
            expressions.append(text)
            _guard_form(trace, target, text)
        replace_node(node, inputs[target])
    erase_dead(trace.graph)
    return expressions


def guard_presence(trace: ForwardTrace, target: str) -> None:
    """Guard that a parameter which is read at run time is not None: kernels treat None as a missing bias."""
    owner, _, name = target.rpartition(".")
    for table in ("_parameters", "_buffers"):
        if trace.twin.get_submodule(owner).__dict__[table].get(name) is not None:
            text = f'_held({guard_path(owner)}, "{table}", "{name}")'
            trace.guards.add(f"{text} is not None")
            _guard_form(trace, target, text)


def _guard_form(trace: ForwardTrace, target: str, text: str) -> None:
    """Guard the class and the dtype of a tensor that the module holds: what was rewritten follows from both.

    A mask of numbers is not a boolean mask, a cast may be needed for another dtype, and a class may override functions.
    """
    owner, _, name = target.rpartition(".")
    held = getattr(trace.twin.get_submodule(owner), name, None)
    if isinstance(held, Tensor):
        own = getattr(trace.module.get_submodule(owner), name, None)
        trace.guards.add(f"{'_plain' if type(own) in PLAIN_TENSORS else '_keeps_functions'}({text})")
        trace.guards.same(f"{text}.dtype", held.dtype)
    elif text.startswith("_held("):
        trace.guards.add(f"{text} is not None")


def _guard_expression(trace: ForwardTrace, target: str) -> str | None:
    """The guard expression that reads an attribute; None if the forward must read it from the module."""
    owner, _, name = target.rpartition(".")
    reach = guard_path(owner)
    if owner and f"_unwatched({reach})" not in trace.guards.tests:
        return None
    module = trace.twin.get_submodule(owner)
    for table in ("_parameters", "_buffers"):
        if name in module.__dict__[table]:
            return f'_held({reach}, "{table}", "{name}")'
    return guard_inside(owner, name) if not isinstance(module.__dict__.get(name, module), nn.Module) else None
