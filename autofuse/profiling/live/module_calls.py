"""Hears of every call of every module of some models, and leaves no sign on them. Knows nn.Module, and no profiler.

Hooks would do too, but an optimized model runs its original code where somebody watches a module that a fused
operation reads past: with hooks one would measure another program. So `nn.Module.__call__` itself is replaced for the
length of a block, as torch.fx does while it traces; whatever the class of a module, its call goes through there.
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

_ONE = threading.Lock()  # may be let go by another thread than took it: a step may end in either


class ModuleNames:
    """Fully qualified names of the modules of one or several models, as their users know them.

    A module that a model holds under two names has the first. What torch wraps around a user's module has no name;
    only what torch.compile(model) returns has its module's, for it calls the module past `nn.Module.__call__`.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        """`models`: each with what its names begin with; "" where there is only one."""
        self.models = dict(models)
        self._names: dict[nn.Module, str] = {}
        self._compiled: dict[nn.Module, str] = {}
        for prefix, model in models.items():
            for path, module in model.named_modules():
                name = joined(prefix, user_name(model, path))
                if not wrapped_name(module):
                    self._names.setdefault(module, name)
                elif wrapped_name(module) == "_orig_mod":
                    self._compiled.setdefault(module, name)

    def __getitem__(self, module: nn.Module) -> str | None:
        return self._names.get(module, self._compiled.get(module))

    def items(self) -> Iterator[tuple[str, nn.Module]]:
        """Every name with its module, in the order of the models' own."""
        return iter((name, module) for module, name in self._names.items())


def joined(prefix: str, name: str) -> str:
    """A fully qualified name of two parts, either of which may be ""."""
    return ".".join(part for part in (prefix, name) if part)


@contextmanager
def around_calls(names: ModuleNames, around: Around) -> Iterator[None]:
    """Enter `around(name, module)` for the length of every call of a module that has a name.

    The outermost call is entered first. Recomputed forwards of checkpointing are calls too. Code that torch.compile
    has compiled makes no calls: of its modules only the compiled one itself is heard of. Raises RuntimeError where
    calls are watched already.
    """

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[Any]:
        name = names[module]
        return nullcontext() if name is None else around(name, module)

    with around_every_call(enter):
        yield


@contextmanager
def around_every_call(enter: Entered) -> Iterator[None]:
    """Enter `enter(module, args, kwargs)` for the length of every call of any module, whichever thread makes it.

    One block at a time may be active; a second raises RuntimeError, in another thread too.
    """
    if not _ONE.acquire(blocking=False):
        raise RuntimeError("The calls of modules are watched already: end the first profile before a second.")
    inner = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # nothing of ours may end in what is compiled
            return inner(module, *args, **kwargs)
        with enter(module, args, kwargs):
            return inner(module, *args, **kwargs)

    setattr(call, OBSERVES_ONLY, True)
    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        with around_narrow_calls(enter):
            yield
    finally:
        nn.Module.__call__ = inner  # type: ignore[method-assign]
        _ONE.release()
