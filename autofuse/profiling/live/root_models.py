"""Finds out which models a step runs, and which optimizers, by watching one. Leaves no sign on either.

A model is a module whose call is made by no other module's. Knows nn.Module and torch.optim, and not what they are for.
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
    """What was seen: the models by the order of their first calls, with that call's arguments, and the optimizers."""

    def __init__(self, met: Callable[[nn.Module, StepArguments], object] = lambda module, call: None) -> None:
        """`met(module, call)` hears of each module before its first outermost call runs."""
        self._met = met
        self.calls: dict[nn.Module, StepArguments] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self._depth = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what is called in the block. May be entered again: what it sees is added."""
        hook = register_optimizer_step_pre_hook(self._stepped)
        try:
            with around_every_call(self._called):
                yield
        finally:
            hook.remove()

    @contextmanager
    def _called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        if self._depth == 0 and module not in self.calls:
            self.calls[module] = args, kwargs
            self._met(module, (args, kwargs))
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)

    @property
    def models(self) -> Mapping[str, nn.Module]:
        """The models with what the names of their modules begin with: "" for a single one, else its class.

        Losses without parameters (`nn.CrossEntropyLoss`), and modules that lie within another root, are none.
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
    """Whether a module, or one below it, has any: losses have none."""
    return any(True for _ in module.parameters())
