"""Runs steps of a copy of a model, with the original forwards or the planned ones, without visible side effects."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.install.dispatch import Entry, RewrittenForward, reinstall, restore_module, uninstall
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.short_copies import ShortCopy
from autofuse.fx.session.trials import copy_module, install_plans
from autofuse.fx.trace.ambient_state import preserve_generators
from autofuse.fx.trace.external_state import ExternalState
from autofuse.fx.trace.module_calls import snapshot
from autofuse.fx.trace.own_forward import own_forward
from autofuse.fx.trace.quiet_log import quiet_log
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
        size: Which layers of a shortened copy run, "4 of 48 layers"; "" if all do.
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
        self.first_seconds, self.size = 0.0, ""
        self._layers: tuple[nn.Module, ...] = ()

    @contextmanager
    def prepare(self, longest: float = math.inf) -> Iterator[ModelSteps]:
        """In the block, the copy can run the planned forwards.

        After the block, the state outside the model is restored. A first step records which state that may be.

        Args:
            longest: If a step takes more seconds, equal layers are removed from the copy.
        """
        outside = ExternalState()
        try:
            for cls in {type(m) for m in self._copies}:
                outside.note_defaults(own_forward(plain_class(cls)))
                outside.note_class(plain_class(cls))
            with watch(outside) if can_watch() else nullcontext():
                if not self._shorten(longest):
                    self.first_seconds = seconds_of(self.step(()), self.device)
            originals = {copy: module for module, copy in self._copies.items()}
            forwards: dict[Hashable, RewrittenForward] = {}  # equal layers share one
            present = set(self.twin.modules())
            for module, copy in self._copies.items():
                if module in self._planner.states and copy in present:
                    install_plans(self._planner, module, copy, known=forwards)
            self._entries = {originals[copy]: entry for copy, entry in uninstall(self.twin).items()}
            yield self
        finally:
            for copy in self._copies.values():
                restore_module(copy)
            outside.restore()

    def _shorten(self, longest: float) -> bool:
        """Remove equal layers from the copy if a step takes too long with them. Returns whether they are removed.

        They stay if the shorter copy does not run each of its layers once.
        """
        originals = {copy: module for module, copy in self._copies.items()}
        short = ShortCopy(self.twin, partial(self._describe, originals)) if longest < math.inf else None
        if short is None or not short.size:
            return False
        try:
            with short.count_calls() as calls:
                self.first_seconds = seconds_of(self.step(()), self.device)
            runs_alike = all(calls[layer] == 1 for layer in short.layers)
        except Exception:  # the model counts its layers
            runs_alike = False
        if not runs_alike or self.first_seconds * short.factor <= longest:
            short.undo()
            return False
        self.size = short.size
        self._layers = tuple(originals[m] for layer in short.layers for m in layer.modules() if m in originals)
        return True

    def _describe(self, originals: Mapping[nn.Module, nn.Module], layer: nn.Module) -> Hashable:
        """Everything that a layer's time depends on: its modules, their tensors' sizes, and their planned forwards."""
        return tuple(
            (name, plain_class(type(m)), m.extra_repr(), _forms_of(m), self._forwards_of(originals.get(m)))
            for name, m in layer.named_modules()
        )

    def _forwards_of(self, module: nn.Module | None) -> Hashable:
        plans = self._planner.plans_in_mode(module, self._training).items() if module is not None else ()
        return tuple((dropped, plan.forward, bool(plan.narrowed)) for dropped, plan in plans if plan.variant)

    @property
    def planned_modules(self) -> Modules:
        """The modules that have a planned forward."""
        return tuple(self._entries)

    @property
    def repeated_modules(self) -> Modules:
        """The planned modules in the layers of a shortened copy. They run more often in the model."""
        return tuple(m for m in self._layers if m in self._entries)

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


def _forms_of(module: nn.Module) -> Hashable:
    """Shapes and dtypes of a module's own tensors."""
    tensors = (*module._parameters.items(), *module._buffers.items())
    return tuple((name, None if t is None else (t.shape, t.dtype, t.requires_grad)) for name, t in tensors)


@contextmanager
def quiet_steps() -> Iterator[None]:
    """In the block, steps do not change random generators, write to the log or show warnings."""
    with quiet_log(), preserve_generators(), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        yield
