"""Finds which module owns each event of a trace, and whether the event belongs to the forward or the backward.

A module call is a range on the thread that calls it, named `mod::<fully qualified name>`. Events within the range
belong to the module, unless they are within the range of a module that it calls. A node of the backward belongs to the
module whose operator created it. Everything within a node belongs to the backward, recomputed modules included.
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
    forward_thread_id,
    forward_threads,
    sequence_number,
    thread_of,
    with_sequence_numbers,
)
from autofuse.profiling.trace.steps import LAUNCHES
from autofuse.profiling.trace.trace import Event, Trace
from autofuse.profiling.trace.work import Phase
from autofuse.results.profile import OUTSIDE

MODULE = "mod::"  # prefix of the range of a module call; the name of the module follows, "" for the model itself
WINDOW = "ProfilerStep#"
NAMELESS = "nn.Module: "  # prefix of a module in torch's own stacks; its class and a number follow

_OPERATORS = ("cpu_op", "operator")
_LABELS = ("user_annotation",)
_GATHERS = "torch::autograd::AccumulateGrad"
_COMMUNICATES = re.compile(r"^(c10d::|record_param_comms)|nccl|rccl|gloo:", re.IGNORECASE)
_COMPILED = re.compile(r"^Torch-Compiled Region|CompiledFxGraph|^CompiledFunction(Backward)?$")


@dataclass(slots=True)
class Owned:
    """An event and its owner.

    owner: a module's name, OUTSIDE for events in no module, None if the owner is unknown.
    own: nanoseconds without the events within it.
    computes: it is an operator that computes or moves data, and not a part of another one.
    compiled: it runs in code that torch.compile generated, where modules make no calls.
    called: it is a call of a module, and not a recomputed one.
    caller: the owner of the event that it runs within.
    """

    event: Event
    owner: str | None
    phase: Phase
    own: int
    computes: bool = False
    compiled: bool = False
    called: bool = False
    caller: str | None = OUTSIDE
    last_node: str | None = field(default=None, repr=False)  # the owner of the last node directly within it
    is_part: bool = field(default=False, repr=False)  # whether it is part of an operator that computes
    node_end: int | None = field(default=None, repr=False)  # the end of that node, if no other event followed

    @property
    def is_operator(self) -> bool:
        """Whether it is an operator: not a label, a window or a launch."""
        return self.event.category in _OPERATORS and not self.event.name.startswith(MODULE)

    @property
    def is_call(self) -> bool:
        """Whether it is the range of a module's call."""
        return self.event.name.startswith(MODULE) or self.event.category == "python_function"

    @property
    def is_launch(self) -> bool:
        """Whether it is a call of the device's runtime."""
        return self.event.category in LAUNCHES


def owners(trace: Trace) -> list[Owned]:
    """Return every event of the host with its owner, in order of time.

    Python functions of torch's stacks count only if they are modules, and only if the trace has no `mod::` ranges.
    """
    has_ranges = any(e.name.startswith(MODULE) for e in trace.events)
    categories = (*_OPERATORS, *_LABELS, *LAUNCHES)
    events = [
        *with_sequence_numbers(
            e
            for e in trace.events
            if e.category in categories
            or not has_ranges
            and e.category == "python_function"
            and e.name.startswith(NAMELESS)
        )
    ]
    walk = _OwnerSearch(Forwards(forward_threads(events)))
    found = [walk.add(event) for event in events]
    if not has_ranges:
        _rename_modules(found)
    return found


def _rename_modules(found: list[Owned]) -> None:
    """Give names to modules that the trace names by their class only (torch's stacks).

    "Model_0.Layer_13.Linear_92" is the first Linear of the fourteenth Layer: "Model.Layer.13.Linear.0". Then repeated
    layers differ only in the number of the layer, as they do in a model.
    """
    paths = dict.fromkeys(one.owner for one in found if one.is_call and one.owner not in (None, OUTSIDE))
    children: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        above, _, last = str(path).rpartition(".")
        children.setdefault((above, last.rpartition("_")[0] or last), []).append(str(path))
    part = {
        path: name if len(same_class) == 1 else f"{name}.{index}"
        for (_, name), same_class in children.items()
        for index, path in enumerate(same_class)
    }
    names: dict[str, str] = {}
    for path in part:  # callers come before the modules that they call
        above = path.rpartition(".")[0]
        names[path] = f"{names[above]}.{part[path]}" if above in names else part[path]
    for one in found:
        one.owner, one.caller = (None if n is None else names.get(n, n) for n in (one.owner, one.caller))


class _OwnerSearch:
    """Visits the events of all threads in order of time, with a stack of open events for each thread."""

    def __init__(self, forwards: Forwards[str | None]) -> None:
        self._forwards = forwards
        self._stacks: dict[Thread, list[Owned]] = {}
        self._paths: dict[str, str] = {}

    def add(self, event: Event) -> Owned:
        thread = thread_of(event)
        if thread not in self._stacks:
            nothing = Event("", "", event.start, 0)
            self._stacks[thread] = [Owned(nothing, OUTSIDE, "forward", 0)]
        stack = self._stacks[thread]
        while len(stack) > 1 and stack[-1].event.end <= event.start:
            stack.pop()
        parent = stack[-1]
        owned = self._with_owner(event, parent)
        covered = min(event.end, parent.event.end) - event.start if len(stack) > 1 else 0
        is_node = owned.phase == "backward" and _is_node(event, parent)
        if is_node and parent.node_end is not None:  # between two nodes, the engine prepares the second
            owned.own += event.start - parent.node_end
            covered += event.start - parent.node_end
        parent.own -= covered if len(stack) > 1 else 0
        parent.node_end = event.end if is_node else None
        stack.append(owned)
        return owned

    def _with_owner(self, event: Event, parent: Owned) -> Owned:
        owned = Owned(event, parent.owner, parent.phase, event.duration, compiled=parent.compiled, caller=parent.owner)
        owned.is_part = parent.computes or parent.is_part
        owned.computes = not owned.is_part and owned.is_operator and bool(category_of(event.name))
        if (module := self._module_owner(event, parent)) is not None:
            owned.called = owned.phase == "forward" and not _is_same_call(event, parent)
            owned.owner = module
        elif _is_node(event, parent):
            owned.owner, owned.phase = self._node_owner(event, parent), "backward"
            parent.last_node = owned.owner
        elif event.category in _OPERATORS and is_communication(event.name):
            owned.owner = OUTSIDE
        owned.compiled = owned.compiled or _is_compiled(event.name)
        self._forwards.note(event, owned.owner)
        return owned

    def _module_owner(self, event: Event, parent: Owned) -> str | None:
        if event.name.startswith(MODULE):
            return event.name.removeprefix(MODULE)
        if event.category != "python_function":
            return None
        name = event.name.removeprefix(NAMELESS)
        above = "" if parent.owner in (None, OUTSIDE) else f"{parent.owner}."
        # Autograd calls recomputed modules. They keep the path of their first call.
        return self._paths.setdefault(name, above + name)

    def _node_owner(self, event: Event, parent: Owned) -> str | None:
        # Gradients are accumulated before any other ready node, so right after the node that they come from.
        return parent.last_node if event.name.endswith(_GATHERS) else self._forwards.owner(event)


def _is_node(event: Event, parent: Owned) -> bool:
    if event.name.startswith(NODE):
        return True
    if event.category not in _OPERATORS or parent.event.name.startswith(NODE):
        return False
    return event.name == _GATHERS or forward_thread_id(event) > 0 and sequence_number(event) is not None


def _is_same_call(event: Event, parent: Owned) -> bool:
    """A wrapper of torch has the name of the module that it wraps: DDP's call and its module's call are one."""
    return event.name == parent.event.name


@cache
def is_communication(name: str) -> bool:
    """Whether the operator of that name communicates with other ranks."""
    return bool(_COMMUNICATES.search(name))


@cache
def _is_compiled(name: str) -> bool:
    return bool(_COMPILED.search(name.removeprefix(NODE)))
