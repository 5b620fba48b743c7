"""Finds where the steps of somebody else's program end, while it runs. Knows optimizers and calls, not instruments.

A step ends with its optimizer's, whatever gradients were accumulated before; a GradScaler that skips one ends it too.
Where optimizers step within the backward pass or in compiled code, and in a program without any (inference, updates by
hand), a step ends where the next one's first call of a model begins.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from autofuse.fx.trace.own_forward import OBSERVES_ONLY
from autofuse.profiling.live.call_stack import callers
from autofuse.profiling.live.step_pattern import Rhythm
from autofuse.profiling.live.waiting_times import uncompiled
from autofuse.torch_private import OPTIMIZER_POST_HOOKS, current_graph_task_id

_WORKSHOPS = ("autofuse.fx.", "autofuse.measure.", "autofuse.kernels.")
_STARTED_BY = "autofuse.profiling.live.program"  # what lies below it is no part of the program
_CALLS_TO_SEE = 3  # before a program that has made no optimizer is taken for one that never will


class Boundaries:
    """In `with boundaries.found():`, `ended()` is called where a step ends, and `anew()` where what was taken for a
    step turns out to be something else. Both are called in the thread that made this, and may raise.

    inference: calls of models are the steps, even if the program has an optimizer.
    """

    def __init__(self, ended: Callable[[], None], anew: Callable[[], None], inference: bool = False) -> None:
        self._ended, self._anew = ended, anew
        self._rhythm = Rhythm()
        self._home = os.getpid(), threading.get_ident()
        self._stepping: list[Optimizer] = []  # of nested steps, the outermost first
        self._due = False  # a step is over, which is told when the next one begins
        self._task = -1  # the backward pass in which an optimizer stepped last
        self._later = False  # in a backward pass and in compiled code instruments cannot come and go
        self._after_step_outside = uncompiled(self._after_step)
        self._calls = OutermostCalls(self._called)
        self._by_calls = inference
        self._always_calls = inference
        self._seen = 0
        self._made = False  # an optimizer, which may step yet
        self.optimizers: list[Optimizer] = []

    @property
    def by(self) -> str:
        """What ends a step here, in words."""
        return "calls of the model" if self._by_calls else "steps of the optimizer"

    @contextmanager
    def found(self) -> Iterator[None]:
        """Listen in the block. A compiled optimizer's step breaks its graph there, before and after its work."""
        with ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(uncompiled(self._before_step)).remove)
            self._come_last()
            stack.callback(lambda: self._handle.remove())
            stack.enter_context(_scaler_steps(self._scaled))
            stack.enter_context(_optimizers_made(self._one_is_made))
            self._calls.watch()
            stack.callback(self._calls.leave)
            yield

    def _here(self) -> bool:
        return self._home == (os.getpid(), threading.get_ident())

    # Optimizers.

    def _come_last(self) -> None:
        """Hooks come and go with the instruments, which must not disturb those that are still to be called."""
        self._handle = register_optimizer_step_post_hook(self._after_any_step)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if next(reversed(OPTIMIZER_POST_HOOKS), self._handle.id) != self._handle.id:
            self._handle.remove()
            self._come_last()
        if optimizer in self._stepping:  # its last step ended in an exception
            del self._stepping[self._stepping.index(optimizer) :]
        self._stepping.append(optimizer)

    def _after_any_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._after_step_outside(optimizer, torch.compiler.is_compiling())

    def _after_step(self, optimizer: Optimizer, compiled: bool) -> None:
        if optimizer not in self._stepping:
            return
        outermost = self._stepping[0] is optimizer
        del self._stepping[self._stepping.index(optimizer) :]
        if not outermost or self._always_calls or os.getpid() != self._home[0]:
            return
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)
        task = current_graph_task_id()
        if task == -1 and self._here() and not compiled:
            self._acted(_key(optimizer))
        elif task == -1 or task != self._task:  # optimizers of one backward pass act as one
            self._task, self._later = task, True
            self._due = self._heard(_key(optimizer) if task == -1 else "backward") or self._due

    def _scaled(self, optimizer: Optimizer) -> None:
        """A GradScaler stepped, or found infinities and did not."""
        if not self._always_calls and self._here():
            self._acted(_key(optimizer))

    def _acted(self, who: Hashable) -> None:
        if self._by_calls:  # it was no program without an optimizer after all
            self._by_calls, self._rhythm, self._due = False, Rhythm(), False
            self._begin_anew()
        ends = self._heard(who)
        if not self._later:
            self._calls.leave()
        if ends:
            self._end()

    # Calls.

    def _called(self, module: nn.Module) -> None:
        if not self._here() or _is_ours():
            return
        if self._due:
            self._due = False
            self._end()
        self._seen += 1
        if not self.optimizers and not self._by_calls and not self._made and self._seen > _CALLS_TO_SEE:
            self._by_calls = True
        if self._by_calls:
            self._due = self._heard(module)

    def _one_is_made(self) -> None:
        self._made = True

    def _heard(self, who: Hashable) -> bool:
        before = self._rhythm.changes
        ends = self._rhythm.heard(who)
        if self._rhythm.changes != before:
            self._begin_anew()
        return ends

    def _begin_anew(self) -> None:
        with self._calls.lifted():
            self._anew()

    def _end(self) -> None:
        with self._calls.lifted():  # instruments come and go beneath
            self._ended()


class OutermostCalls:
    """Hears of calls of modules that no other module makes, before they begin, one layer above any instrument."""

    def __init__(self, told: Callable[[nn.Module], None]) -> None:
        self._told = told
        self._below = nn.Module.__call__
        self._inside = False
        self.watching = False
        calls, compiling = self, torch.compiler.is_compiling

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if compiling() or calls._inside or not calls.watching:
                return calls._below(module, *args, **kwargs)
            calls._inside = True
            try:
                calls._told(module)
                return calls._below(module, *args, **kwargs)
            finally:
                calls._inside = False

        setattr(call, OBSERVES_ONLY, True)
        self._call = call

    def watch(self) -> None:
        """Hear of every call from now on."""
        self._below = nn.Module.__call__
        nn.Module.__call__ = self._call  # type: ignore[method-assign]
        self.watching = True

    def leave(self) -> None:
        """Hear of none any more."""
        if self.watching:
            nn.Module.__call__ = self._below  # type: ignore[method-assign]
            self.watching = False

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """What replaces `nn.Module.__call__` in the block comes to lie below."""
        was_watching = self.watching
        self.leave()
        try:
            yield
        finally:
            if was_watching:
                self.watch()


@contextmanager
def _scaler_steps(skipped: Callable[[Optimizer], None]) -> Iterator[None]:
    """Tell of each step that a GradScaler leaves out."""
    inner = GradScaler.step

    def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        stepped: list[Optimizer] = []
        hook = register_optimizer_step_pre_hook(lambda one, *_: stepped.append(one))
        try:
            result = inner(scaler, optimizer, *args, **kwargs)
        finally:
            hook.remove()
        if not stepped:
            skipped(optimizer)
        return result

    GradScaler.step = step  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        GradScaler.step = inner  # type: ignore[method-assign]


def _is_ours() -> bool:
    """Whether the call comes from autofuse at work in the program (optimize, compare), and is no step of it."""
    for frame in callers():
        name = str(frame.f_globals.get("__name__"))
        if name.startswith(_WORKSHOPS) or name == _STARTED_BY:
            return name != _STARTED_BY
    return False


def _key(optimizer: Optimizer) -> Hashable:
    """The same for an optimizer and another that is made anew for the same parameters, as some loops do."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return type(optimizer).__name__, id(next(parameters, None))


@contextmanager
def _optimizers_made(told: Callable[[], None]) -> Iterator[None]:
    """Tell of each optimizer that is made."""
    inner = Optimizer.__init__

    @functools.wraps(inner)
    def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        told()
        inner(optimizer, *args, **kwargs)

    Optimizer.__init__ = made  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Optimizer.__init__ = inner  # type: ignore[method-assign]
