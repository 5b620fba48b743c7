"""What is profiled: one step that can be run again and again, the models in it, and their inputs."""

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
    """What is to be run has no numbers; the message says what, and what can be told nevertheless."""


@dataclass
class Workload:
    """One step, and what it is made of as far as that is known.

    run: the step as a function of the inputs. models: each with what its modules' names begin with. calls: arguments
    of each model's first call in a step.
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
        """Of all modules in it."""
        return ModuleNames(self.models)

    @property
    def device(self) -> torch.device:
        """Where it runs: the accelerator that one of its tensors is on, else the CPU."""
        given = tuple(tensors_in((self.inputs, *self.calls.values())))
        models: tuple[Subject, ...] = (*self.models.values(), self.step)
        devices = [device_of(model, given) for model in models]
        return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))

    def look(self, met: Callable[[nn.Module, StepArguments], object] = lambda module, call: None) -> None:
        """Run one step, and see from it which models and optimizers there are; `met` hears of models beforehand."""
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
    """What profile()'s arguments mean. Raises TypeError where they are neither a model with inputs nor a step, OnMeta
    where a model or its inputs have no numbers."""
    if step is not None and not callable(step):
        raise TypeError(f"step= is a {type(step).__name__}: pass a function that is called as step(model, inputs).")
    if isinstance(subject, nn.Module):
        if inputs is None:
            raise TypeError(
                f"A {type(subject).__name__} is to be profiled, and no inputs were given to call it with: "
                "pass a tensor, a tuple of positional arguments or a dict of keywords."
            )
        _with_numbers(subject, inputs)
        run = partial(step or training_step, subject)
        name = name or type(subject).__name__
        return Workload(partial(run, inputs), name, {"": subject}, tuple(optimizers), inputs, run)
    if not callable(subject):
        raise TypeError(
            f"autofuse.profile takes a model or a step that can be called, and was given a {type(subject).__name__}."
        )
    if step is not None:
        raise TypeError("Two steps were given to profile: pass the model and step=, or the step by itself.")
    name = name or getattr(subject, "__name__", "step")
    if inputs is None:
        return Workload(subject, name, {}, tuple(optimizers))
    run = partial(training_step, subject)
    return Workload(partial(run, inputs), name, {}, tuple(optimizers), inputs, run)


def _with_numbers(model: nn.Module, inputs: Inputs) -> None:
    for what, tensors in (
        ("model lies", (*model.parameters(), *model.buffers())), ("inputs lie", tensors_in(inputs)),
    ):  # fmt: skip
        if any(tensor.is_meta for tensor in tensors):
            raise OnMeta(
                f"The {what} on the meta device, where there are no numbers, so no step can be run: make it on a real "
                "device (a model: to_empty), or ask `autofuse plan` what a step takes on paper."
            )
