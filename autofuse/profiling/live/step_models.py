"""Which models a program's step runs, told by the step: also a model that only ever calls its parts, as Lightning does.

Knows modules, calls and the frames that they come from.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.profiling.live.call_stack import callers
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.root_models import Roots, has_parameters
from autofuse.torch_private import current_graph_task_id, pytree


class ScriptRoots(Roots):
    """As Roots, and: who owns a module that is called by no other. backwards: passes in what was watched."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: dict[nn.Module, nn.Module] = {}
        self.labels: dict[nn.Module, str] = {}  # what the program calls them
        self.backwards = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what is called in the block, by whom, and how often backward."""
        with ExitStack() as stack:
            stack.enter_context(super().watching())
            stack.enter_context(self._counting_backwards())
            yield

    def let_go(self) -> None:
        """Keep the values of the calls' arguments, and no graph that they hang on."""

        def detached(value: Any) -> Any:
            return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value

        with torch.inference_mode(False):
            self.calls = {module: pytree.tree_map(detached, call) for module, call in self.calls.items()}

    @property
    def models(self) -> Mapping[str, nn.Module]:
        """As of Roots, with owners in the place of the parts that they call."""
        tops = dict.fromkeys(self.owners.get(m, m) for m in self.calls if has_parameters(m))
        if len(tops) == 1:
            return {"": next(iter(tops))}
        models = super().models
        labels = [self.labels.get(model, "self") for model in models.values()]
        named = len(set(labels)) == len(labels) and "self" not in labels
        return dict(zip(labels, models.values(), strict=True)) if named else models

    def called(self, names: ModuleNames) -> Mapping[str, nn.Module]:
        """The models that were called themselves, in an owner's place the parts that it calls, by their names."""
        models = self.models
        if all(model in self.calls for model in models.values()):
            return models
        inside = {part for module in self.calls for part in module.modules() if part is not module}
        return {name: m for m in self.calls if m not in inside and (name := names[m]) is not None and has_parameters(m)}

    @contextmanager
    def _called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        if self._depth == 0 and module not in self.calls:
            self._ask_frames(module)
        with super()._called(module, args, kwargs):
            yield

    def _ask_frames(self, module: nn.Module) -> None:
        """Its owner, the largest module that some function on the way to this call has at hand and that holds it; and
        its name in the innermost function of those that are no part of torch or autofuse."""
        held: dict[nn.Module, int] = {}
        for frame in callers():
            ours = frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "autofuse")
            for name, value in _locals(frame).items():
                if value is module and not ours:
                    self.labels.setdefault(module, name)
                elif isinstance(value, nn.Module) and value is not module and value not in held:
                    parts = list(value.modules())
                    if any(part is module for part in parts):
                        held[value] = len(parts)
        if held:
            self.owners[module] = max(held, key=held.__getitem__)

    @contextmanager
    def _counting_backwards(self) -> Iterator[None]:
        inner = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            self.backwards += current_graph_task_id() == -1  # not within one, as when checkpointing
            return inner(*args, **kwargs)

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = inner


def _locals(frame: types.FrameType) -> dict[str, Any]:
    values = dict(frame.f_locals)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
        frame.f_locals.clear()  # a copy, which would keep the tensors of this step for as long as the frame lives
    return values
