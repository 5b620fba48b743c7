"""Steps of a copy of a model, as it was written or with what is planned for some of its modules; nobody notices them.

Knows copies, forwards and what a step leaves behind; must not know what steps are timed for.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.install.dispatch import Entry, reinstall, restore_module, uninstall
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.trials import copied, install_plans
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
from autofuse.measure.timing import Action
from autofuse.torch_private import pytree

Modules = Collection[nn.Module]


class ModelSteps:
    """ModelSteps of a copy of a model, with its own forwards or with those that are planned for some of its modules."""

    def __init__(self, model: nn.Module, call: ForwardArguments, planner: Planner, training: bool) -> None:
        self._made: dict[nn.Module, nn.Module] = {}
        self.twin = copied(model, self._made, planner.sharded)
        self._planner, self._training = planner, training
        self.device = device_of(model, tuple(t for t in pytree.tree_leaves(call) if isinstance(t, Tensor)))
        self._call = snapshot(*call, real=True)
        self._plain = all(isinstance(x, Tensor) or x is None or type(x) in (bool, int, float, str)
                          for x in (*call[0], *call[1].values()))  # fmt: skip
        set_mode(self.twin, training)
        self._entries: dict[nn.Module, Entry] = {}

    @contextmanager
    def ready(self) -> Iterator[ModelSteps]:
        """In the block the copy can run what is planned. After it, what a step changes outside of the model is as it
        was: the first run tells what that may be."""
        outside = ExternalState()
        try:
            for cls in {type(m) for m in self._made}:
                outside.note_defaults(own_forward(plain_class(cls)))
                outside.note_class(plain_class(cls))
            with watch(outside) if can_watch() else nullcontext():
                self.step(())()
            originals = {copy: module for module, copy in self._made.items()}
            for module, copy in self._made.items():
                if module in self._planner.states:
                    install_plans(self._planner, module, copy)
            self._entries = {originals[copy]: entry for copy, entry in uninstall(self.twin).items()}
            yield self
        finally:
            for copy in self._made.values():
                restore_module(copy)
            outside.restore()

    @property
    def planned(self) -> Modules:
        """The modules for which something is planned."""
        return tuple(self._entries)

    @contextmanager
    def kept(self, running: Modules) -> Iterator[Action]:
        """In the block the copy runs the forwards planned for `running` all the time; yields its step."""
        reinstall({self._made[m]: self._entries[m] for m in running})
        yield self.run

    def compared(self, running: Modules) -> JudgedTimings:
        """The step with the forwards planned for `running` against the original."""
        return time_steps(self.step(()), self.step(running), self.device)

    def step(self, running: Modules) -> Action:
        """What is timed: forward and backward for training, else the forward without gradients."""
        entries = {self._made[m]: self._entries[m] for m in running if m in self._entries}

        def step() -> None:
            reinstall(entries)
            try:
                self.run()
            finally:
                for copy in entries:
                    restore_module(copy)

        return step

    def run(self) -> None:
        """One step, with the forwards that the copy has now."""
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
def undisturbed() -> Iterator[None]:
    """The user's generators, log and standard error hear nothing of the steps."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with preserve_generators(), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
