"""What a rewritten forward reads of its module, handed to it by the guards, which have read it already.

A module finds a parameter or a child by a Python function of its own; guards know the way through its dicts. Only
what the guards vouch for is read that way: the module's own tensors, and what pristine children hold
(trace/plain_children.py).
"""

from __future__ import annotations

from torch import fx, nn

from autofuse.fx.trace.attribute_reads import guard_inside, guard_path
from autofuse.fx.trace.operation_names import erase_dead, put_in_place
from autofuse.fx.trace.tracer import ForwardTrace


def handed(trace: ForwardTrace, count: int) -> list[str]:
    """Turn reads of attributes into inputs, numbered from `count`; how a guard reaches each."""
    texts: list[str] = []
    made: dict[str, fx.Node] = {}
    first = next(n for n in trace.graph.nodes if n.op != "placeholder")
    for node in [n for n in trace.graph.nodes if n.op == "get_attr"]:
        target = str(node.target)
        text = _reach(trace, target)
        if text is None:
            _guard_presence(trace, target)
            continue
        if target not in made:
            with trace.graph.inserting_before(first):
                made[target] = trace.graph.placeholder(f"in{count + len(texts)}")
            made[target].meta = dict(node.meta)
            texts.append(text)
            if text.startswith("_held("):
                trace.guards.add(f"{text} is not None")
        put_in_place(node, made[target])
    erase_dead(trace.graph)
    return texts


def _guard_presence(trace: ForwardTrace, target: str) -> None:
    """A parameter that a forward reads of its module at run time is no None then: kernels take that for no bias."""
    owner, _, name = target.rpartition(".")
    for table in ("_parameters", "_buffers"):
        if trace.twin.get_submodule(owner).__dict__[table].get(name) is not None:
            trace.guards.add(f'_held({guard_path(owner)}, "{table}", "{name}") is not None')


def _reach(trace: ForwardTrace, target: str) -> str | None:
    """How a guard reaches an attribute; None if a forward had better ask the module."""
    owner, _, name = target.rpartition(".")
    reach = guard_path(owner)
    if owner and f"_unwatched({reach})" not in trace.guards.tests:
        return None
    module = trace.twin.get_submodule(owner)
    for table in ("_parameters", "_buffers"):
        if name in module.__dict__[table]:
            return f'_held({reach}, "{table}", "{name}")'
    return guard_inside(owner, name) if not isinstance(module.__dict__.get(name, module), nn.Module) else None
