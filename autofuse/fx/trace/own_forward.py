"""Returns the forward that a class was written with, also where a dispatcher (install/dispatch.py) has replaced it.

This file knows which dispatcher belongs to which forward. It does not know what a dispatcher does.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from autofuse.torch_private import module_call

OBSERVES_ONLY = (
    "__autofuse_looks_on__"  # marks a replaced `nn.Module.__call__` that only observes, such as our profiler's
)
ENTRY = "_autofuse"  # the attribute that holds a module's rewritten forward; see install/dispatch.py

Forward = Callable[..., Any]

# The code of a generator or a coroutine. A program may ask for it: `asyncio.iscoroutinefunction(model.forward)`.
_RUNS_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE

_replaceable: WeakKeyDictionary[type, types.FunctionType] = (
    WeakKeyDictionary()
)  # class -> a forward that can be replaced
# Dispatcher -> its code, and the original forward. The pair is valid as long as the dispatcher has that code.
_originals: WeakKeyDictionary[types.FunctionType, tuple[types.CodeType, types.FunctionType]] = WeakKeyDictionary()


def register_dispatcher(dispatcher: types.FunctionType, original: types.FunctionType) -> None:
    """Records that `dispatcher` replaces `original`."""
    _originals[dispatcher] = dispatcher.__code__, original


def original_of(dispatcher: Forward) -> types.FunctionType | None:
    """Returns the forward that `dispatcher` was made to replace, or None for any other function."""
    found = _originals.get(dispatcher) if isinstance(dispatcher, types.FunctionType) else None
    return None if found is None else found[1]


def has_other_code(dispatcher: types.FunctionType) -> bool:
    """Returns whether someone gave a dispatcher other code. Its classes then run that code."""
    return dispatcher in _originals and _originals[dispatcher][0] is not dispatcher.__code__


def own_function(function: Forward) -> Forward:
    """Returns the user's function behind a dispatcher.

    Any other function, and a dispatcher that was given other code, is returned itself.
    """
    found = _originals.get(function) if isinstance(function, types.FunctionType) else None
    return function if found is None or found[0] is not function.__code__ else found[1]


def own_forward(cls: type) -> Forward:
    """Returns the forward that instances of `cls` run if nothing is rewritten.

    This is the forward of `nn.Module` if only instances have one. A class of torch.jit.script has none.
    """
    return own_function(getattr(cls, "forward", nn.Module.forward))


def calls_plainly(call: Any) -> bool:
    """Returns whether a module's `__call__` runs hooks and forward, and nothing else that affects results."""
    return call is module_call or torch.compiler.is_compiling() or getattr(call, OBSERVES_ONLY, False)


def definer_of(cls: type) -> type | None:
    """Returns the class from which `cls` inherits its forward, or None."""
    return next((c for c in cls.__mro__ if "forward" in vars(c)), None)


def why_not_replaceable(cls: type) -> str:
    """Returns why the inherited or own forward of `cls` cannot be replaced: the end of a sentence, or ""."""
    definer = definer_of(cls)
    if definer is None:
        return "has no forward"
    found = vars(definer)["forward"]
    if _replaceable.get(definer) is not found:
        if why := _why_not_assignable(definer, found):
            return why
        _replaceable[definer] = found
    return ""


def _why_not_assignable(definer: type, found: object) -> str:
    if not isinstance(found, types.FunctionType):
        return f"has a {type(found).__name__} for its forward, not a function"
    if found.__code__.co_flags & _RUNS_LATER:
        return "has a forward that runs later: a generator or a coroutine"
    if not found.__code__.co_argcount and not found.__code__.co_flags & 0x04:
        return "has a forward that takes no module"
    try:
        definer.forward = found  # type: ignore[attr-defined]  # assigns the same object, so nothing changes
    except Exception:  # a metaclass may raise anything
        return "does not let its attributes be set"
    return "" if vars(definer).get("forward") is found else "changes what is assigned to it"
