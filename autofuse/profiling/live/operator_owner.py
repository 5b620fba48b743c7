"""Whose operator runs right now: the module, and whether it is the forward or the backward.

Knows autograd's nodes and the calls of modules; must not know what is counted or timed. In the forward the module is
the innermost that is being called. In the backward it is the one in whose call the running node was made: nodes are
numbered as they are made, thread by thread, and the numbers at which calls begin and end are kept here.
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

_NUMBERLESS = 2**63  # gathering a gradient has the highest number there is
_CHECKPOINTING = "torch.utils.checkpoint"


class Owner(NamedTuple):
    """fqn: OUTSIDE where no module is called. again: part of a forward that is computed once more for its backward."""

    fqn: str
    phase: Phase
    again: bool


@dataclass
class _Thread:
    """What one thread does. `calls` are those that are open, each with the graph task that it is made in."""

    calls: list[tuple[str, int]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)  # of nodes from the number at the same place on
    recomputing: int = -1  # the last graph task in which this thread recomputed a forward
    last: str = OUTSIDE  # whose backward ran last

    def mark(self) -> None:
        """From the next node on, nodes belong to the innermost open call."""
        self.numbers.append(get_sequence_nr())
        self.owners.append(self.calls[-1][0] if self.calls else OUTSIDE)

    def owner(self, number: int) -> str:
        place = bisect_right(self.numbers, number) - 1
        return self.owners[place] if place >= 0 else OUTSIDE


class Running:
    """Asked by an instrument for each operator; told of modules' calls by `called`, for calls.around_calls."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._main = self._here()

    @contextmanager
    def called(self, name: str, module: nn.Module) -> Iterator[None]:
        """For the length of a module's call."""
        thread, task = self._here(), current_graph_task_id()
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
        """Whose operator the calling thread is in."""
        thread, task = self._here(), current_graph_task_id()
        if task < 0:
            return Owner(thread.calls[-1][0] if thread.calls else OUTSIDE, "forward", False)
        if thread.calls and thread.calls[-1][1] == task:
            return Owner(thread.calls[-1][0], "backward", True)
        return Owner(self._owner(thread, task), "backward", _is_recomputing())

    def _here(self) -> _Thread:
        return self._threads.setdefault(threading.get_ident(), _Thread())

    def _owner(self, thread: _Thread, task: int) -> str:
        node = current_autograd_node()
        if node is None:
            return OUTSIDE
        number = node._sequence_nr()
        if number < _NUMBERLESS:  # else a gradient is gathered, right after the node that it comes from
            # A backward within a backward goes through nodes that this thread made when it recomputed the forward.
            nested = 0 <= thread.recomputing < task
            thread.last = (thread if nested else self._main).owner(number)
        return thread.last


def gradients_wanted() -> tuple[bool, ...]:
    """Of which inputs of the operator whose backward runs right now the gradient is asked for; () outside of one."""
    node = current_autograd_node()
    return () if node is None else tuple(following is not None for following, _ in node.next_functions)


def is_an_optimizers(whose: Owner) -> bool:
    """Whether an optimizer's step runs right now, and not a closure of its that calls the model."""
    if whose[:2] != (OUTSIDE, "forward") or torch.is_grad_enabled():
        return False
    return any(isinstance(frame.f_locals.get("self"), torch.optim.Optimizer) for frame in callers())


def _is_recomputing() -> bool:
    """Whether a backward pass computes a forward once more outside of any module's call.

    A backward pass has gradients off, unless it builds a graph of itself; then only checkpointing's own code tells.
    """
    if not torch.is_grad_enabled():
        return False
    if not keeps_graph():
        return True
    return any(frame.f_globals.get("__name__") == _CHECKPOINTING for frame in callers())
