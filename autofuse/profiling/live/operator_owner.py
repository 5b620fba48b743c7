"""Finds the module that owns the running operator, and whether it is in the forward or the backward.

In the forward, the owner is the innermost module that is being called. In the backward, it is the module in whose call
the running node was created. Autograd numbers nodes as they are created, by thread, and this file records the numbers
at which calls begin and end.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

from autofuse.profiling.live.call_stack import callers
from autofuse.profiling.trace.work import Phase
from autofuse.results.profile import OUTSIDE
from autofuse.torch_private import current_autograd_node, current_graph_task_id, get_sequence_nr, keeps_graph

_NUMBERLESS = 2**63  # accumulating a gradient has the highest possible number
_CHECKPOINTING = "torch.utils.checkpoint"


class Owner(NamedTuple):
    """The owner of an operator.

    fqn: OUTSIDE if no module is called.
    phase: forward or backward.
    again: it is part of a forward that is recomputed for its backward.
    """

    fqn: str
    phase: Phase
    again: bool


@dataclass
class _Thread:
    """The state of one thread. `calls` has the open calls, each with the graph task that it is made in."""

    calls: list[tuple[str, int]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)  # owners of the nodes from the number at the same index on
    recomputing: int = -1  # the last graph task in which this thread recomputed a forward
    last: str = OUTSIDE  # the owner of the backward that ran last

    def mark(self) -> None:
        """From the next node on, nodes belong to the innermost open call."""
        self.numbers.append(get_sequence_nr())
        self.owners.append(self.calls[-1][0] if self.calls else OUTSIDE)

    def owner(self, number: int) -> str:
        place = bisect_right(self.numbers, number) - 1
        return self.owners[place] if place >= 0 else OUTSIDE


class Running:
    """Answers which module owns the running operator. `called` informs it of modules' calls, for around_calls."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._main = self._this_thread()

    @contextmanager
    def called(self, name: str, module: nn.Module) -> Iterator[None]:
        """Record a module's call, for its duration."""
        thread, task = self._this_thread(), current_graph_task_id()
        if task < 0:
            self._main = thread
            for other in self._threads.values():
                other.recomputing = -1
        else:
            thread.recomputing = task
        thread.calls.append((name, task))
        thread.mark()
        try:
            yield
        finally:
            thread.calls.pop()
            thread.mark()

    def now(self) -> Owner:
        """Return the owner of the operator that the calling thread runs."""
        thread, task = self._this_thread(), current_graph_task_id()
        if task < 0:
            return Owner(thread.calls[-1][0] if thread.calls else OUTSIDE, "forward", False)
        if thread.calls and thread.calls[-1][1] == task:
            return Owner(thread.calls[-1][0], "backward", True)
        return Owner(self._owner(thread, task), "backward", _is_recomputing())

    def _this_thread(self) -> _Thread:
        return self._threads.setdefault(threading.get_ident(), _Thread())

    def _owner(self, thread: _Thread, task: int) -> str:
        node = current_autograd_node()
        if node is None:
            return OUTSIDE
        number = node._sequence_nr()
        if (
            number < _NUMBERLESS
        ):  # Otherwise a gradient is accumulated. The engine does that right after the node that computes the gradient.
            # A nested backward runs nodes that this thread created when it recomputed the forward.
            nested = 0 <= thread.recomputing < task
            thread.last = (thread if nested else self._main).owner(number)
        return thread.last


def gradients_wanted() -> tuple[bool, ...]:
    """Return which inputs of the forward operator get a gradient in the running backward; () outside of one."""
    node = current_autograd_node()
    return () if node is None else tuple(following is not None for following, _ in node.next_functions)


def is_optimizer_step(whose: Owner) -> bool:
    """Whether an optimizer's step runs right now, and not its closure, which calls the model."""
    if whose[:2] != (OUTSIDE, "forward") or torch.is_grad_enabled():
        return False
    return any(isinstance(frame.f_locals.get("self"), torch.optim.Optimizer) for frame in callers())


def _is_recomputing() -> bool:
    """Whether a backward pass recomputes a forward outside of any module's call.

    A backward pass has gradients off, unless it builds a graph itself. Then only checkpointing's own code shows it.
    """
    if not torch.is_grad_enabled():
        return False
    if not keeps_graph():
        return True
    return any(frame.f_globals.get("__name__") == _CHECKPOINTING for frame in callers())
