"""Finds which models a program's step runs, also a model that only calls its parts, as Lightning does."""

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
    """Like Roots. It also finds the owner of a module that no other module calls.

    backwards: the number of backward passes in the watched block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.owners: dict[nn.Module, nn.Module] = {}
        self.labels: dict[nn.Module, str] = {}  # the program's names for the modules
        self.backwards = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe the calls, their callers and the backward passes in the block."""
        with ExitStack() as stack:
            stack.enter_context(super().watching())
            stack.enter_context(self._count_backward_passes())
            yield

    def drop_graphs(self) -> None:
        """Detach the arguments of the recorded calls, so that their autograd graphs are freed."""

        def detached(value: Any) -> Any:
            return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value

        with torch.inference_mode(False):
            self.calls = {module: pytree.tree_map(detached, call) for module, call in self.calls.items()}

    @property
    def models(self) -> Mapping[str, nn.Module]:
        """The models as in Roots, with owners in place of the parts that they call."""
        tops = dict.fromkeys(self.owners.get(m, m) for m in self.calls if has_parameters(m))
        if len(tops) == 1:
            return {"": next(iter(tops))}
        models = super().models
        labels = [self.labels.get(model, "self") for model in models.values()]
        named = len(set(labels)) == len(labels) and "self" not in labels
        return dict(zip(labels, models.values(), strict=True)) if named else models

    def called_models(self, names: ModuleNames) -> Mapping[str, nn.Module]:
        """Return the models that were called themselves, by name; in place of an owner, the parts that it calls."""
        models = self.models
        if all(model in self.calls for model in models.values()):
            return models
        inside = {part for module in self.calls for part in module.modules() if part is not module}
        return {name: m for m in self.calls if m not in inside and (name := names[m]) is not None and has_parameters(m)}

    @contextmanager
    def _on_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        if self._depth == 0 and module not in self.calls:
            self._find_owner_in_frames(module)
        with super()._on_call(module, args, kwargs):
            yield

    def _find_owner_in_frames(self, module: nn.Module) -> None:
        """Find a module's owner and name in the frames that lead to its call.

        The owner is the largest module that contains it and that a function's local variables hold. The name is that in
        the innermost function outside of torch and autofuse.
        """
        containers: dict[nn.Module, int] = {}
        for frame in callers():
            is_internal = frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "autofuse")
            for name, value in _locals(frame).items():
                if value is module and not is_internal:
                    self.labels.setdefault(module, name)
                elif isinstance(value, nn.Module) and value is not module and value not in containers:
                    parts = list(value.modules())
                    if any(part is module for part in parts):
                        containers[value] = len(parts)
        if containers:
            self.owners[module] = max(containers, key=containers.__getitem__)

    @contextmanager
    def _count_backward_passes(self) -> Iterator[None]:
        original = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            self.backwards += current_graph_task_id() == -1  # not a nested one, as in checkpointing
            return original(*args, **kwargs)

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = original


def _locals(frame: types.FrameType) -> dict[str, Any]:
    values = dict(frame.f_locals)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
        frame.f_locals.clear()  # the copy of the locals would keep the tensors of the step alive as long as the frame
    return values
