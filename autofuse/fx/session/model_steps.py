"""Runs steps of a copy of a model, with the original forwards or the planned ones, without visible side effects."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.install.dispatch import Entry, RewrittenForward, reinstall, restore_module, uninstall
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.trials import copy_module, install_plans
from autofuse.fx.trace.ambient_state import preserve_generators
from autofuse.fx.trace.external_state import ExternalState
from autofuse.fx.trace.module_calls import snapshot
from autofuse.fx.trace.own_forward import own_forward
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.twin import plain_class, set_mode
from autofuse.fx.trace.user_code import can_watch, watch
from autofuse.measure.compare import device_of
from autofuse.measure.pair_count import JudgedTimings
from autofuse.measure.step import clear_gradients, training_step
from autofuse.measure.step_pairs import time_steps
from autofuse.measure.timing import Action, seconds_of
from autofuse.torch_private import pytree

Modules = Collection[nn.Module]


class ModelSteps:
    """Steps of a copy of a model, in one mode.

    Attributes:
        twin: The copy.
        device: The device of the model.
        first_seconds: How long the first step took, after `prepare`. It is observed, so it takes longer than others.
    """

    def __init__(self, model: nn.Module, call: ForwardArguments, planner: Planner, training: bool) -> None:
        self._copies: dict[nn.Module, nn.Module] = {}
        self.twin = copy_module(model, self._copies, planner.sharded)
        self._planner, self._training = planner, training
        self.device = device_of(model, tuple(t for t in pytree.tree_leaves(call) if isinstance(t, Tensor)))
        self._call = snapshot(*call, real=True)
        # Other arguments, such as caches, may change in a step, so each step gets a copy of them.
        self._plain = all(isinstance(x, Tensor) or x is None or type(x) in (bool, int, float, str)
                          for x in (*call[0], *call[1].values()))  # fmt: skip
        set_mode(self.twin, training)
        self._entries: dict[nn.Module, Entry] = {}
        self.first_seconds = 0.0

    @contextmanager
    def prepare(self) -> Iterator[ModelSteps]:
        """In the block, the copy can run the planned forwards.

        After the block, the state outside the model is restored. A first step records which state that may be.
        """
        outside = ExternalState()
        try:
            for cls in {type(m) for m in self._copies}:
                outside.note_defaults(own_forward(plain_class(cls)))
                outside.note_class(plain_class(cls))
            with watch(outside) if can_watch() else nullcontext():
                self.first_seconds = seconds_of(self.step(()), self.device)
            originals = {copy: module for module, copy in self._copies.items()}
            forwards: dict[Hashable, RewrittenForward] = {}  # equal layers share one
            for module, copy in self._copies.items():
                if module in self._planner.states:
                    install_plans(self._planner, module, copy, known=forwards)
            self._entries = {originals[copy]: entry for copy, entry in uninstall(self.twin).items()}
            yield self
        finally:
            for copy in self._copies.values():
                restore_module(copy)
            outside.restore()

    @property
    def planned_modules(self) -> Modules:
        """The modules that have a planned forward."""
        return tuple(self._entries)

    @contextmanager
    def running_forwards(self, running: Modules) -> Iterator[Action]:
        """In the block, the copy runs the planned forwards of `running`. Yields its step."""
        reinstall({self._copies[m]: self._entries[m] for m in running})
        yield self.run

    def compare(self, running: Modules) -> JudgedTimings:
        """Time the step with the planned forwards of `running` against the original step, which `prepare` has run."""
        return time_steps(self.step(()), self.step(running), self.device, is_before_warm=True)

    def step(self, running: Modules) -> Action:
        """The function to time: forward and backward for training, otherwise the forward without gradients."""
        entries = {self._copies[m]: self._entries[m] for m in running if m in self._entries}

        def step() -> None:
            reinstall(entries)
            try:
                self.run()
            finally:
                for copy in entries:
                    restore_module(copy)

        return step

    def run(self) -> None:
        """Run one step with the current forwards of the copy."""
        if self._training:
            training_step(self._forward, ())
            clear_gradients((self.twin,), tuple(t for t in self._call[0] if isinstance(t, Tensor)))
        else:
            with torch.no_grad():
                self._forward()

    def _forward(self) -> Any:
        args, kwargs = self._call if self._plain else snapshot(*self._call, real=True)
        return self.twin(*args, **kwargs)


@contextmanager
def quiet_steps() -> Iterator[None]:
    """In the block, steps do not change random generators, write to the log or show warnings."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with preserve_generators(), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
