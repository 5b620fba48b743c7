"""Finds the models and the optimizers of a step by watching it, without leaving a trace on them.

A model is a module that no other module calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autofuse.profiling.live.module_calls import around_every_call

StepArguments = tuple[tuple[Any, ...], dict[str, Any]]


class Roots:
    """The observed models in order of their first calls, with the arguments of that call, and the optimizers."""

    def __init__(self, met: Callable[[nn.Module, StepArguments], object] = lambda module, call: None) -> None:
        """`met(module, call)` is called with each module before its first outermost call runs."""
        self._met = met
        self.calls: dict[nn.Module, StepArguments] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self._depth = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe the calls in the block. If it is entered again, the results are added."""
        hook = register_optimizer_step_pre_hook(self._on_step)
        try:
            with around_every_call(self._on_call):
                yield
        finally:
            hook.remove()

    @contextmanager
    def _on_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        if self._depth == 0 and module not in self.calls:
            self.calls[module] = args, kwargs
            self._met(module, (args, kwargs))
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _on_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)

    @property
    def models(self) -> Mapping[str, nn.Module]:
        """The models by the prefix of their modules' names: "" for a single model, else its class.

        Losses without parameters (`nn.CrossEntropyLoss`) and modules inside another root are left out.
        """
        calls = [module for module in self.calls if has_parameters(module)]
        inside = {part for module in calls for part in module.modules() if part is not module}
        found = [module for module in calls if module not in inside]
        if len(found) == 1:
            return {"": found[0]}
        names: dict[str, nn.Module] = {}
        for module in found:
            name = type(module).__name__
            same = sum(known == name or known.startswith(f"{name}-") for known in names)
            names[f"{name}-{same + 1}" if same else name] = module
        return names


def has_parameters(module: nn.Module) -> bool:
    """Whether a module or one below it has parameters. Losses have none."""
    return any(True for _ in module.parameters())
