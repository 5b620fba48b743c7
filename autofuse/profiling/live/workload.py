"""The subject of a profile: one step that can be repeated, its models, and their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from autofuse.measure.compare import device_of
from autofuse.measure.step import Inputs, Step, training_step
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.root_models import Roots, StepArguments
from autofuse.torch_private.nested import tensors_in

Subject = nn.Module | Callable[..., Any]


class OnMeta(ValueError):
    """The model or its inputs have no numbers. The message says which, and what is possible nevertheless."""


@dataclass
class Workload:
    """One step and its parts, as far as they are known.

    step: runs one step.
    run: the step as a function of the inputs.
    models: each model, by the prefix of its modules' names.
    calls: the arguments of each model's first call in a step.
    """

    step: Callable[[], object]
    name: str
    models: Mapping[str, nn.Module] = field(default_factory=dict)
    optimizers: Sequence[torch.optim.Optimizer] = ()
    inputs: Inputs | None = None
    run: Callable[[Inputs], object] | None = None
    calls: Mapping[nn.Module, StepArguments] = field(default_factory=dict)

    @property
    def names(self) -> ModuleNames:
        """The names of all modules in it."""
        return ModuleNames(self.models)

    @property
    def device(self) -> torch.device:
        """The accelerator of one of its tensors, else the CPU."""
        given = tuple(tensors_in((self.inputs, *self.calls.values())))
        models: tuple[Subject, ...] = (*self.models.values(), self.step)
        devices = [device_of(model, given) for model in models]
        return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))

    def look(self, met: Callable[[nn.Module, StepArguments], object] = lambda module, call: None) -> None:
        """Run one step, and find its models and optimizers. `met` is called with each model before its first call."""
        roots = Roots(met)
        for optimizer in self.optimizers:
            roots.optimizers.append(optimizer)
        with roots.watching():
            self.step()
        self.optimizers = tuple(roots.optimizers)
        self.models = self.models or roots.models
        mine = set(self.models.values())
        self.calls = {module: call for module, call in roots.calls.items() if module in mine}


def workload_of(
    subject: Subject, inputs: Inputs | None, step: Step | None, optimizers: Sequence[Any], name: str
) -> Workload:
    """Return the workload of profile()'s arguments.

    Raises:
        TypeError: They are neither a model with inputs nor a step.
        OnMeta: The model or its inputs have no numbers.
    """
    if step is not None and not callable(step):
        raise TypeError(f"step= is a {type(step).__name__}: pass a function that is called as step(model, inputs).")
    if isinstance(subject, nn.Module):
        if inputs is None:
            raise TypeError(
                f"autofuse.profile needs inputs to call the {type(subject).__name__} with: "
                "pass a tensor, a tuple of positional arguments or a dict of keywords."
            )
        _reject_meta(subject, inputs)
        run = partial(step or training_step, subject)
        name = name or type(subject).__name__
        return Workload(partial(run, inputs), name, {"": subject}, tuple(optimizers), inputs, run)
    if not callable(subject):
        raise TypeError(f"autofuse.profile takes a model or a callable step; got {type(subject).__name__}.")
    if step is not None:
        raise TypeError("autofuse.profile got two steps: pass a model and step=, or a step alone.")
    name = name or getattr(subject, "__name__", "step")
    if inputs is None:
        return Workload(subject, name, {}, tuple(optimizers))
    run = partial(training_step, subject)
    return Workload(partial(run, inputs), name, {}, tuple(optimizers), inputs, run)


def _reject_meta(model: nn.Module, inputs: Inputs) -> None:
    for what, tensors in (
        ("model is", (*model.parameters(), *model.buffers())), ("inputs are", tensors_in(inputs)),
    ):  # fmt: skip
        if any(tensor.is_meta for tensor in tensors):
            raise OnMeta(
                f"The {what} on the meta device, which has no numbers, so no step can run: move to a real device "
                "(for a model, to_empty), or use `autofuse plan` to estimate a step."
            )
