"""Finds the operator of the forward that created a node of the backward, by autograd's sequence numbers.

Each thread numbers the nodes that it creates. An operator of the forward is recorded with the number of the next node.
A node of the backward is recorded with its own number and with the thread that created it ("Fwd thread id"). The trace
numbers that thread differently from the thread of an event, so this file also finds out which is which.
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from autofuse.profiling.trace.trace import Event

Owner = TypeVar("Owner")
Thread = tuple[Hashable, Hashable]  # process, thread

NODE = (
    "autograd::engine::evaluate_function: "  # prefix of the events of the autograd engine; the name of the node follows
)
_COMPARED_NODES = (
    500  # the number of nodes of one thread that are compared with operators; a larger sample gives the same result
)


def sequence_number(event: Event) -> int | None:
    """Return the sequence number of an operator or a node; None for AccumulateGrad, or if gradients are off."""
    value = event.args.get("Sequence number")
    return value if isinstance(value, int) and value >= 0 else None


def forward_thread_id(event: Event) -> int:
    """Return the number of the thread that ran a node's forward; 0 for an operator of a forward."""
    value = event.args.get("Fwd thread id")
    return value if isinstance(value, int) else 0


def thread_of(event: Event) -> Thread:
    """Return the thread that an event ran on."""
    return event.process, event.thread


def forward_threads(events: Iterable[Event]) -> dict[int, Thread]:
    """Return, by "Fwd thread id", the thread whose operators created the nodes with that id.

    If there are several candidates (recomputation on the thread of a GPU's backward creates nodes there), choose the
    thread whose operators match the nodes by name: `addmm` at the number of AddmmBackward0.
    """
    operators: dict[Thread, dict[int, str]] = {}
    nodes: dict[int, dict[int, str]] = {}
    for event in events:
        if (number := sequence_number(event)) is None:
            continue
        if forward_thread_id(event) == 0:
            operators.setdefault(thread_of(event), {})[number] = _letters(event.name)
        elif len(recorded := nodes.setdefault(forward_thread_id(event), {})) < _COMPARED_NODES:
            recorded[number] = _letters(event.name.removeprefix(NODE))
    return {which: _best_match(named, operators) for which, named in nodes.items() if operators}


def _best_match(nodes: Mapping[int, str], operators: Mapping[Thread, Mapping[int, str]]) -> Thread:
    scores: Counter[Thread] = Counter()
    for thread, names in operators.items():
        shared = [number for number in nodes if number in names]
        same = sum(nodes[number].startswith(names[number]) for number in shared)
        scores[thread] = same * (len(nodes) + 1) + len(shared)  # equal names first, then equal numbers
    return max(operators, key=lambda thread: scores[thread])


def _letters(name: str) -> str:
    """Return only the letters of a name, so that `aten::_softmax` and `SoftmaxBackward0` can be compared."""
    return re.sub(r"[^a-z]", "", name.rpartition("::")[2].lower())


def with_sequence_numbers(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events, and give each node its number.

    If hooks (FSDP's, the user's) run before a node, the engine's event around both has no number. The node's own event
    has it.
    """
    listed = list(events)
    waiting: dict[Thread, tuple[int, Event]] = {}
    completed: dict[int, Event] = {}
    for at, event in enumerate(listed):
        thread = thread_of(event)
        if event.name.startswith(NODE) and sequence_number(event) is None:
            waiting[thread] = at, event
        elif thread in waiting:
            place, outer = waiting[thread]
            if event.start >= outer.end:
                del waiting[thread]
            elif sequence_number(event) is not None and event.name == outer.name.removeprefix(NODE):
                completed[place] = replace(outer, args={**outer.args, **event.args})
                del waiting[thread]
    return (completed.get(at, event) for at, event in enumerate(listed))


class Forwards(Generic[Owner]):
    """Records who owns the operators of the forward, and answers for their nodes in the backward."""

    def __init__(self, threads: Mapping[int, Thread]) -> None:
        """`threads`: the result of forward_threads."""
        self._threads = threads
        self._numbers: dict[Thread, list[int]] = {}
        self._owners: dict[tuple[Thread, int], Owner] = {}

    def note(self, event: Event, owner: Owner) -> None:
        """Record an operator of a forward. Call it in order of time.

        If several operators have one number, the last of them created the node.
        """
        if (number := sequence_number(event)) is None or forward_thread_id(event) != 0:
            return
        thread = thread_of(event)
        if (thread, number) not in self._owners:
            insort(self._numbers.setdefault(thread, []), number)
        self._owners[thread, number] = owner

    def owner(self, node: Event) -> Owner | None:
        """Return the owner of a node's forward; None if it is not known.

        It is the owner of the last operator that began at or before the node's number. An operator that creates several
        nodes is recorded with the number of the first, and the next operator with the number after the last.
        """
        number, thread = sequence_number(node), self._threads.get(forward_thread_id(node))
        if number is None or thread is None:
            return None
        numbers = self._numbers.get(thread, [])
        at = bisect_right(numbers, number)
        return self._owners[thread, numbers[at - 1]] if at else None
