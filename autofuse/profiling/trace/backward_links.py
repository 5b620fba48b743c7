"""Which operator of a forward made a node of the backward: joined through the numbers that autograd gives its nodes.

A thread numbers the nodes that it makes. Recorded with an operator of the forward is the number that the next node
will get; with a node of the backward, its own number and the thread ("Fwd thread id") that made it. The trace numbers
threads one way there and another way where it says on which thread an event ran, so which is which is found out here.
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

NODE = "autograd::engine::evaluate_function: "  # what the engine calls its events, followed by the node's name
_LOOKED_AT = 500  # nodes of one thread that are compared with the operators of all threads; more say no more


def number(event: Event) -> int | None:
    """The sequence number of an operator or a node, None where it has none (AccumulateGrad, or gradients are off)."""
    value = event.args.get("Sequence number")
    return value if isinstance(value, int) and value >= 0 else None


def made_by(event: Event) -> int:
    """Of a node, the number of the thread that ran its forward; 0 for operators of a forward."""
    value = event.args.get("Fwd thread id")
    return value if isinstance(value, int) else 0


def thread_of(event: Event) -> Thread:
    """The thread that an event ran on."""
    return event.process, event.thread


def forward_threads(events: Iterable[Event]) -> dict[int, Thread]:
    """By "Fwd thread id", the thread whose operators made the nodes of that id.

    With one thread to choose from there is no question. With several (recomputation on the thread of a GPU's backward
    makes nodes there) it is the one on which the operators of the same numbers have the nodes' names: `addmm` at the
    number of AddmmBackward0.
    """
    operators: dict[Thread, dict[int, str]] = {}
    nodes: dict[int, dict[int, str]] = {}
    for event in events:
        if (known := number(event)) is None:
            continue
        if made_by(event) == 0:
            operators.setdefault(thread_of(event), {})[known] = _plain(event.name)
        elif len(of_id := nodes.setdefault(made_by(event), {})) < _LOOKED_AT:
            of_id[known] = _plain(event.name.removeprefix(NODE))
    return {which: _likeliest(named, operators) for which, named in nodes.items() if operators}


def _likeliest(nodes: Mapping[int, str], operators: Mapping[Thread, Mapping[int, str]]) -> Thread:
    agreeing: Counter[Thread] = Counter()
    for thread, names in operators.items():
        shared = [known for known in nodes if known in names]
        same = sum(nodes[known].startswith(names[known]) for known in shared)
        agreeing[thread] = same * (len(nodes) + 1) + len(shared)  # names first, then how many numbers there are at all
    return max(operators, key=lambda thread: agreeing[thread])


def _plain(name: str) -> str:
    """`aten::_softmax` and `SoftmaxBackward0` begin alike without what is not a letter."""
    return re.sub(r"[^a-z]", "", name.rpartition("::")[2].lower())


def numbered(events: Iterable[Event]) -> Iterator[Event]:
    """The events, and every node with its number.

    Where hooks run before a node (FSDP's, users'), the engine's event around both bears no number; the node's own does.
    """
    listed = list(events)
    waiting: dict[Thread, tuple[int, Event]] = {}
    found: dict[int, Event] = {}
    for at, event in enumerate(listed):
        thread = thread_of(event)
        if event.name.startswith(NODE) and number(event) is None:
            waiting[thread] = at, event
        elif thread in waiting:
            place, outer = waiting[thread]
            if event.start >= outer.end:
                del waiting[thread]
            elif number(event) is not None and event.name == outer.name.removeprefix(NODE):
                found[place] = replace(outer, args={**outer.args, **event.args})
                del waiting[thread]
    return (found.get(at, event) for at, event in enumerate(listed))


class Forwards(Generic[Owner]):
    """Whose the operators of the forward were, to be asked when their nodes come by in the backward."""

    def __init__(self, threads: Mapping[int, Thread]) -> None:
        """`threads`: as forward_threads found them."""
        self._threads = threads
        self._numbers: dict[Thread, list[int]] = {}
        self._owners: dict[tuple[Thread, int], Owner] = {}

    def note(self, event: Event, owner: Owner) -> None:
        """An operator of a forward, in order of time. Of several with one number, the last made the node."""
        if (known := number(event)) is None or made_by(event) != 0:
            return
        thread = thread_of(event)
        if (thread, known) not in self._owners:
            insort(self._numbers.setdefault(thread, []), known)
        self._owners[thread, known] = owner

    def owner(self, node: Event) -> Owner | None:
        """Whose forward made this node: the last operator's that began at or before its number. None: none is known.

        An operator that makes several nodes is recorded with the first one's number, the next operator with the
        number after the last one's.
        """
        known, thread = number(node), self._threads.get(made_by(node))
        if known is None or thread is None:
            return None
        numbers = self._numbers.get(thread, [])
        at = bisect_right(numbers, known)
        return self._owners[thread, numbers[at - 1]] if at else None
