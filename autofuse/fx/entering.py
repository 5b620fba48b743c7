"""What a child of the user's own computes, read in place of its call.

The child stays a call in the trace; only the dataflow graph looks inside, so that its activation, norm or projection
can be part of a match around it. Where a match takes the call away, the child's own guards are added to its parent's,
and it must stay pristine (pristine.py). Small children that are pure are read; any other stays what a call is.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from torch import fx, nn

from autofuse.fx.guards import Guards
from autofuse.fx.names import erase_dead, is_harmless, operation_of
from autofuse.fx.pristine import is_pristine
from autofuse.fx.trace import Trace
from autofuse.fx.twin import plain_class
from autofuse.fx.watching import guard_path, is_known, is_light

_LARGEST = 40  # nodes of a child that is read
_NAMED = re.compile(r"\b_c\d+\b")


def may_enter(child: nn.Module) -> bool:
    """Whether a child is small, pristine and of the user's own: parameters of its own at most, and known layers."""
    own = not is_known(type(child)) and "forward" in dir(plain_class(type(child)))
    return own and is_light(child) and all(map(is_pristine, child.modules()))


def entered(trace: Trace | None) -> Trace | None:
    """`trace` if it is all pure operations of tensors that are its arguments or the child's own; else None."""
    if trace is None:
        return None
    erase_dead(trace.graph)
    if len(trace.graph.nodes) > _LARGEST or not all(map(_is_pure, trace.graph.nodes)):
        return None
    output = next(n for n in trace.graph.nodes if n.op == "output")
    tests = [t for t in trace.guards.tests if "self" not in t]
    sized = any(".shape" in t or "[" in t for t in tests)
    return trace if isinstance(output.args[0], fx.Node) and not sized else None


def _is_pure(node: fx.Node) -> bool:
    if node.meta.get("writes"):
        return False
    if node.op in ("placeholder", "get_attr", "output"):
        return True
    if node.op == "call_module":
        return True  # a known layer without parameters, see may_enter
    return operation_of(node) is not None or is_harmless(node) or getattr(node.target, "__name__", "") == "getitem"


def parameters_of(trace: Trace, args: list[Any], kwargs: dict[str, Any]) -> list[Any] | None:
    """What the child's placeholders stand for, given what it is called with."""
    forward = plain_class(type(trace.module)).forward
    try:
        bound = inspect.signature(forward, follow_wrapped=False).bind(None, *args, **kwargs).arguments
    except TypeError:
        return None
    found = [bound.get(text) for text in trace.inputs]
    return None if any(f is None for f in found) else found


def guard_entered(guards: Guards, child: Trace, path: str) -> None:
    """Add what the child at `path` took for granted of itself."""
    for test in child.guards.tests:
        if "self" in test:
            text = re.sub(r"\bself\b", guard_path(path), test)
            guards.add(_NAMED.sub(lambda m: guards.name_of(child.guards.names[m[0]]), text))
