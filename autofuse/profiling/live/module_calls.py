"""Observes every call of every module of some models, without leaving a trace on them.

Hooks would do, too. But an optimized model runs its original code if a module inside a fused operation has hooks, so
hooks would measure another program. So `nn.Module.__call__` itself is replaced during a block, as torch.fx does while
it traces. Every module call goes through it, whatever the module's class.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from autofuse.fx.rewrite.narrow_calls import around_narrow_calls
from autofuse.fx.trace.own_forward import OBSERVES_ONLY
from autofuse.fx.trace.wrappers import user_name, wrapped_name

Around = Callable[[str, nn.Module], AbstractContextManager[Any]]
Entered = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], AbstractContextManager[Any]]

_ACTIVE = threading.Lock()  # a plain Lock, because another thread may release it: a step may end in any thread


class ModuleNames:
    """Fully qualified names of the modules of one or more models, as their users know them.

    A module that a model contains under two names has the first. Wrappers of torch have no name, with one exception:
    the result of torch.compile(model) has its module's name, because it does not call the module through
    `nn.Module.__call__`.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        """`models`: each model, by the prefix of its names; "" if there is only one."""
        self.models = dict(models)
        self._names: dict[nn.Module, str] = {}
        self._compiled: dict[nn.Module, str] = {}
        for prefix, model in models.items():
            for path, module in model.named_modules():
                name = join_names(prefix, user_name(model, path))
                if not wrapped_name(module):
                    self._names.setdefault(module, name)
                elif wrapped_name(module) == "_orig_mod":
                    self._compiled.setdefault(module, name)

    def __getitem__(self, module: nn.Module) -> str | None:
        return self._names.get(module, self._compiled.get(module))

    def items(self) -> Iterator[tuple[str, nn.Module]]:
        """Return every name with its module, in the order of the models."""
        return iter((name, module) for module, name in self._names.items())


def join_names(prefix: str, name: str) -> str:
    """Return a fully qualified name of two parts, either of which may be ""."""
    return ".".join(part for part in (prefix, name) if part)


@contextmanager
def around_calls(names: ModuleNames, around: Around) -> Iterator[None]:
    """Enter `around(name, module)` during every call of a module that has a name.

    The outermost call is entered first. Recomputed forwards of checkpointing are calls, too. Code of torch.compile
    makes no calls, so only the compiled module itself is observed.

    Raises:
        RuntimeError: Calls are observed already.
    """

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[Any]:
        name = names[module]
        return nullcontext() if name is None else around(name, module)

    with around_every_call(enter):
        yield


@contextmanager
def around_every_call(enter: Entered) -> Iterator[None]:
    """Enter `enter(module, args, kwargs)` during every call of any module, in any thread.

    Only one such block may be active in the process.

    Raises:
        RuntimeError: Another block is active.
    """
    if not _ACTIVE.acquire(blocking=False):
        raise RuntimeError("Module calls are watched already: end the first profile before you start a second.")
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # compiled code must not contain our code
            return original(module, *args, **kwargs)
        with enter(module, args, kwargs):
            return original(module, *args, **kwargs)

    setattr(call, OBSERVES_ONLY, True)
    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        with around_narrow_calls(enter):
            yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]
        _ACTIVE.release()
