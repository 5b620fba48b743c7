"""Finds where the steps of a user's program end while it runs, from its optimizers and model calls.

A step ends with its optimizer's step, after any accumulation of gradients. A GradScaler that skips an optimizer's step
ends it, too. In some programs a step ends where the first model call of the next one begins: if optimizers step within
the backward pass or in compiled code, and if there is no optimizer (inference, manual updates).
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
from autofuse.profiling.live.step_pattern import StepPattern
from autofuse.profiling.live.waiting_times import uncompiled
from autofuse.torch_private import OPTIMIZER_POST_HOOKS, current_graph_task_id

_WORKSHOPS = ("autofuse.fx.", "autofuse.measure.", "autofuse.kernels.")
_STARTED_BY = "autofuse.profiling.live.program"  # frames below it are not part of the program
_CALLS_TO_SEE = 3  # after so many model calls without an optimizer, the program is assumed to have none


class Boundaries:
    """Calls `ended()` where a step ends, in `with boundaries.watching():`.

    It calls `restart()` if what counted as a step was something else. Both run in the thread that created this object,
    and may raise.

    inference: model calls are the steps, even if the program has an optimizer.
    """

    def __init__(self, ended: Callable[[], None], restart: Callable[[], None], inference: bool = False) -> None:
        self._ended, self._restart = ended, restart
        self._pattern = StepPattern()
        self._home = os.getpid(), threading.get_ident()
        self._stepping: list[Optimizer] = []  # of nested steps, the outermost first
        self._due = False  # a step is over, and is reported when the next one begins
        self._task = -1  # the backward pass in which an optimizer stepped last
        self._later = (
            False  # report the end later, because instruments cannot change in a backward pass or in compiled code
        )
        self._after_step_outside = uncompiled(self._after_step)
        self._calls = OutermostCalls(self._before_call)
        self._by_calls = inference
        self._always_calls = inference
        self._seen = 0
        self._has_optimizer = False  # an optimizer was created, and may step later
        self.optimizers: list[Optimizer] = []

    @property
    def by(self) -> str:
        """The event that ends a step, in words."""
        return "calls of the model" if self._by_calls else "steps of the optimizer"

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe the block. A compiled optimizer's step has graph breaks before and after its work."""
        with ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(uncompiled(self._before_step)).remove)
            self._register_last()
            stack.callback(lambda: self._handle.remove())
            stack.enter_context(_scaler_steps(self._after_scaler_step))
            stack.enter_context(_new_optimizers(self._note_new_optimizer))
            self._calls.watch()
            stack.callback(self._calls.leave)
            yield

    def _is_own_thread(self) -> bool:
        return self._home == (os.getpid(), threading.get_ident())

    # Optimizers.

    def _register_last(self) -> None:
        """Register the hook again as the last: instruments add and remove hooks, and those must still be called."""
        self._handle = register_optimizer_step_post_hook(self._after_any_step)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if next(reversed(OPTIMIZER_POST_HOOKS), self._handle.id) != self._handle.id:
            self._handle.remove()
            self._register_last()
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
        if task == -1 and self._is_own_thread() and not compiled:
            self._note_act(_optimizer_key(optimizer))
        elif task == -1 or task != self._task:  # all optimizers of one backward pass count as one
            self._task, self._later = task, True
            self._due = self._record_act(_optimizer_key(optimizer) if task == -1 else "backward") or self._due

    def _after_scaler_step(self, optimizer: Optimizer) -> None:
        """A GradScaler stepped, or found infinities and skipped the step."""
        if not self._always_calls and self._is_own_thread():
            self._note_act(_optimizer_key(optimizer))

    def _note_act(self, who: Hashable) -> None:
        if self._by_calls:  # the program has an optimizer after all
            self._by_calls, self._pattern, self._due = False, StepPattern(), False
            self._restart_profile()
        ends = self._record_act(who)
        if not self._later:
            self._calls.leave()
        if ends:
            self._end()

    # Calls.

    def _before_call(self, module: nn.Module) -> None:
        if not self._is_own_thread() or _is_ours():
            return
        if self._due:
            self._due = False
            self._end()
        self._seen += 1
        if not self.optimizers and not self._by_calls and not self._has_optimizer and self._seen > _CALLS_TO_SEE:
            self._by_calls = True
        if self._by_calls:
            self._due = self._record_act(module)

    def _note_new_optimizer(self) -> None:
        self._has_optimizer = True

    def _record_act(self, who: Hashable) -> bool:
        before = self._pattern.changes
        ends = self._pattern.record_act(who)
        if self._pattern.changes != before:
            self._restart_profile()
        return ends

    def _restart_profile(self) -> None:
        with self._calls.lifted():
            self._restart()

    def _end(self) -> None:
        with self._calls.lifted():  # instruments replace nn.Module.__call__ below this observer
            self._ended()


class OutermostCalls:
    """Observes module calls that no other module makes, before they begin, one layer above any instrument."""

    def __init__(self, callback: Callable[[nn.Module], None]) -> None:
        self._callback = callback
        self._below = nn.Module.__call__
        self._inside = False
        self.watching = False
        calls, compiling = self, torch.compiler.is_compiling

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if compiling() or calls._inside or not calls.watching:
                return calls._below(module, *args, **kwargs)
            calls._inside = True
            try:
                calls._callback(module)
                return calls._below(module, *args, **kwargs)
            finally:
                calls._inside = False

        setattr(call, OBSERVES_ONLY, True)
        self._call = call

    def watch(self) -> None:
        """Observe every call from now on."""
        self._below = nn.Module.__call__
        nn.Module.__call__ = self._call  # type: ignore[method-assign]
        self.watching = True

    def leave(self) -> None:
        """Stop observing."""
        if self.watching:
            nn.Module.__call__ = self._below  # type: ignore[method-assign]
            self.watching = False

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """In the block, replacements of `nn.Module.__call__` are placed below this one."""
        was_watching = self.watching
        self.leave()
        try:
            yield
        finally:
            if was_watching:
                self.watch()


@contextmanager
def _scaler_steps(skipped: Callable[[Optimizer], None]) -> Iterator[None]:
    """Report each step that a GradScaler skips."""
    original = GradScaler.step

    def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        stepped: list[Optimizer] = []
        hook = register_optimizer_step_pre_hook(lambda one, *_: stepped.append(one))
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        finally:
            hook.remove()
        if not stepped:
            skipped(optimizer)
        return result

    GradScaler.step = step  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        GradScaler.step = original  # type: ignore[method-assign]


def _is_ours() -> bool:
    """Whether autofuse itself makes the call in the program (optimize, compare), so that it is not a step."""
    for frame in callers():
        name = str(frame.f_globals.get("__name__"))
        if name.startswith(_WORKSHOPS) or name == _STARTED_BY:
            return name != _STARTED_BY
    return False


def _optimizer_key(optimizer: Optimizer) -> Hashable:
    """Return an equal key for an optimizer and one that is created again for the same parameters, as in some loops."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return type(optimizer).__name__, id(next(parameters, None))


@contextmanager
def _new_optimizers(callback: Callable[[], None]) -> Iterator[None]:
    """Report each optimizer that is created."""
    original = Optimizer.__init__

    @functools.wraps(original)
    def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        callback()
        original(optimizer, *args, **kwargs)

    Optimizer.__init__ = init  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Optimizer.__init__ = original  # type: ignore[method-assign]
