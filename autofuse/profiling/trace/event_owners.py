"""Whose each event of a trace is: which module's, in the forward or the backward. Knows ranges, nodes and nesting.

Modules are ranges on the thread that calls them, `mod::<fully qualified name>`. What runs within one, and in none of
those that it calls, is its own. A node of the backward belongs to the module whose operator made it; what runs within
a node is the backward's, recomputed modules included. Knows no torch, and not what becomes of the seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

from autofuse.ir.operator_categories import category_of
from autofuse.profiling.trace.backward_links import (
    NODE,
    Forwards,
    Thread,
    forward_threads,
    made_by,
    number,
    numbered,
    thread_of,
)
from autofuse.profiling.trace.steps import LAUNCHES
from autofuse.profiling.trace.trace import Event, Trace
from autofuse.profiling.trace.work import Phase
from autofuse.results.profile import OUTSIDE

MODULE = "mod::"  # a range of this name is a call of the module whose name follows; "" is the model itself
WINDOW = "ProfilerStep#"
NAMELESS = "nn.Module: "  # what torch's own stacks call a module: its class and a number

_OPERATORS = ("cpu_op", "operator")
_LABELS = ("user_annotation",)
_GATHERS = "torch::autograd::AccumulateGrad"
_COMMUNICATES = re.compile(r"^(c10d::|record_param_comms)|nccl|rccl|gloo:", re.IGNORECASE)
_COMPILED = re.compile(r"^Torch-Compiled Region|CompiledFxGraph|^CompiledFunction(Backward)?$")


@dataclass(slots=True)
class Owned:
    """An event and whose it is.

    owner: a module's name, OUTSIDE for what runs in no module, None where that cannot be told. own: nanoseconds
    without the events within it. computes: it is an operator that computes or moves data, and no part of another.
    compiled: it runs in code that torch.compile made, where modules make no calls. called: it is a call of a module,
    and not a recomputed one. caller: whose is what it runs within.
    """

    event: Event
    owner: str | None
    phase: Phase
    own: int
    computes: bool = False
    compiled: bool = False
    called: bool = False
    caller: str | None = OUTSIDE
    last_node: str | None = field(default=None, repr=False)  # whose the last node directly within it was
    is_part: bool = field(default=False, repr=False)  # of an operator that computes
    node_end: int | None = field(default=None, repr=False)  # when that ended, if nothing else came since

    @property
    def is_operator(self) -> bool:
        """Not a label, a window or a launch."""
        return self.event.category in _OPERATORS and not self.event.name.startswith(MODULE)

    @property
    def is_call(self) -> bool:
        """The range of a module's call."""
        return self.event.name.startswith(MODULE) or self.event.category == "python_function"

    @property
    def is_launch(self) -> bool:
        """A call of the device's runtime."""
        return self.event.category in LAUNCHES


def owners(trace: Trace) -> list[Owned]:
    """Every event of the host, with whose it is, in order of time.

    Of the Python functions that torch's stacks hold only modules are looked at, and those only where the trace has no
    `mod::` ranges.
    """
    named = any(e.name.startswith(MODULE) for e in trace.events)
    wanted = (*_OPERATORS, *_LABELS, *LAUNCHES)
    events = [
        *numbered(
            e
            for e in trace.events
            if e.category in wanted or not named and e.category == "python_function" and e.name.startswith(NAMELESS)
        )
    ]
    walk = _Walk(Forwards(forward_threads(events)))
    found = [walk.take(event) for event in events]
    if not named:
        _rename(found)
    return found


def _rename(found: list[Owned]) -> None:
    """Names modules that only stacks tell by their classes, numbered among those of their class in what calls them.

    "Model_0.Layer_13.Linear_92" is the first Linear of the fourteenth Layer: "Model.Layer.13.Linear.0". Then layers
    that repeat have equal names but for the number of the repeated one, as they have in a model.
    """
    paths = dict.fromkeys(one.owner for one in found if one.is_call and one.owner not in (None, OUTSIDE))
    children: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        above, _, last = str(path).rpartition(".")
        children.setdefault((above, last.rpartition("_")[0] or last), []).append(str(path))
    part = {
        path: name if len(alike) == 1 else f"{name}.{number}"
        for (_, name), alike in children.items()
        for number, path in enumerate(alike)
    }
    names: dict[str, str] = {}
    for path in part:  # a module is called after what calls it
        above = path.rpartition(".")[0]
        names[path] = f"{names[above]}.{part[path]}" if above in names else part[path]
    for one in found:
        one.owner, one.caller = (None if n is None else names.get(n, n) for n in (one.owner, one.caller))


class _Walk:
    """Goes through the events of all threads in order of time, with a stack of those that are open on each thread."""

    def __init__(self, forwards: Forwards[str | None]) -> None:
        self._forwards = forwards
        self._stacks: dict[Thread, list[Owned]] = {}
        self._paths: dict[str, str] = {}

    def take(self, event: Event) -> Owned:
        thread = thread_of(event)
        if thread not in self._stacks:
            nothing = Event("", "", event.start, 0)
            self._stacks[thread] = [Owned(nothing, OUTSIDE, "forward", 0)]
        stack = self._stacks[thread]
        while len(stack) > 1 and stack[-1].event.end <= event.start:
            stack.pop()
        parent = stack[-1]
        owned = self._owned(event, parent)
        inside = min(event.end, parent.event.end) - event.start if len(stack) > 1 else 0
        is_node = owned.phase == "backward" and _is_node(event, parent)
        if is_node and parent.node_end is not None:  # between two nodes the engine works, for the second
            owned.own += event.start - parent.node_end
            inside += event.start - parent.node_end
        parent.own -= inside if len(stack) > 1 else 0
        parent.node_end = event.end if is_node else None
        stack.append(owned)
        return owned

    def _owned(self, event: Event, parent: Owned) -> Owned:
        owned = Owned(event, parent.owner, parent.phase, event.duration, compiled=parent.compiled, caller=parent.owner)
        owned.is_part = parent.computes or parent.is_part
        owned.computes = not owned.is_part and owned.is_operator and bool(category_of(event.name))
        if (module := self._module(event, parent)) is not None:
            owned.called = owned.phase == "forward" and not _is_same_call(event, parent)
            owned.owner = module
        elif _is_node(event, parent):
            owned.owner, owned.phase = self._node_owner(event, parent), "backward"
            parent.last_node = owned.owner
        elif event.category in _OPERATORS and is_message(event.name):
            owned.owner = OUTSIDE
        owned.compiled = owned.compiled or _is_compiled(event.name)
        self._forwards.note(event, owned.owner)
        return owned

    def _module(self, event: Event, parent: Owned) -> str | None:
        if event.name.startswith(MODULE):
            return event.name.removeprefix(MODULE)
        if event.category != "python_function":
            return None
        name = event.name.removeprefix(NAMELESS)
        above = "" if parent.owner in (None, OUTSIDE) else f"{parent.owner}."
        # Recomputed modules are called by autograd: their path is that of their first call.
        return self._paths.setdefault(name, above + name)

    def _node_owner(self, event: Event, parent: Owned) -> str | None:
        # Gradients are gathered before any other node that is ready, thus right after the node that they come from.
        return parent.last_node if event.name.endswith(_GATHERS) else self._forwards.owner(event)


def _is_node(event: Event, parent: Owned) -> bool:
    if event.name.startswith(NODE):
        return True
    if event.category not in _OPERATORS or parent.event.name.startswith(NODE):
        return False
    return event.name == _GATHERS or made_by(event) > 0 and number(event) is not None


def _is_same_call(event: Event, parent: Owned) -> bool:
    """What torch wraps around a module bears its name: DDP's call and its module's are one."""
    return event.name == parent.event.name


@cache
def is_message(name: str) -> bool:
    """Whether the operator of that name sends something to other ranks."""
    return bool(_COMMUNICATES.search(name))


@cache
def _is_compiled(name: str) -> bool:
    return bool(_COMPILED.search(name.removeprefix(NODE)))
