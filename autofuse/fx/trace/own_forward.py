"""Which function a class was written with for its forward, where a dispatcher (install/dispatch.py) stands for it.

Knows who stands for whom, and nothing of what is done in between.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from autofuse.torch_private import module_call

LOOKS_ON = "__autofuse_looks_on__"  # on a replaced `nn.Module.__call__` that only observes: a profiler of autofuse's
ENTRY = "_autofuse"  # under which a module keeps its other forward; see install/dispatch.py

Forward = Callable[..., Any]

_taken: WeakKeyDictionary[type, types.FunctionType] = WeakKeyDictionary()  # class -> a forward that it lets go of
# Dispatcher -> its code, and the original that it stands for as long as it has that code.
_stand_ins: WeakKeyDictionary[types.FunctionType, tuple[types.CodeType, types.FunctionType]] = WeakKeyDictionary()


def stand_in(dispatcher: types.FunctionType, original: types.FunctionType) -> None:
    """From here on `dispatcher` stands for `original`."""
    _stand_ins[dispatcher] = dispatcher.__code__, original


def original_of(dispatcher: Forward) -> types.FunctionType | None:
    """What `dispatcher` was made to stand for; None for any other function."""
    found = _stand_ins.get(dispatcher) if isinstance(dispatcher, types.FunctionType) else None
    return None if found is None else found[1]


def is_replaced(dispatcher: types.FunctionType) -> bool:
    """Whether somebody gave a dispatcher another code, which is what its classes run now."""
    return dispatcher in _stand_ins and _stand_ins[dispatcher][0] is not dispatcher.__code__


def own_function(function: Forward) -> Forward:
    """The user's function; `function` itself where it is no dispatcher of autofuse's, or was given another code."""
    found = _stand_ins.get(function) if isinstance(function, types.FunctionType) else None
    return function if found is None or found[0] is not function.__code__ else found[1]


def own_forward(cls: type) -> Forward:
    """The forward that instances of `cls` have when nothing is rewritten; that of nn.Module if only instances have one.

    A class of torch.jit.script has none.
    """
    return own_function(getattr(cls, "forward", nn.Module.forward))


def calls_plainly(call: Any) -> bool:
    """Whether a `__call__` of a class of modules runs hooks and forward and nothing else, as far as results go."""
    return call is module_call or torch.compiler.is_compiling() or getattr(call, LOOKS_ON, False)


def definer_of(cls: type) -> type | None:
    """The class that `cls` has its forward from; None where there is none."""
    return next((c for c in cls.__mro__ if "forward" in vars(c)), None)


def why_kept(cls: type) -> str:
    """Why the class that defines the forward of `cls` cannot be given another one, as the end of a sentence, or ""."""
    definer = definer_of(cls)
    if definer is None:
        return "has no forward"
    found = vars(definer)["forward"]
    if _taken.get(definer) is not found:
        if why := _asked(definer, found):
            return why
        _taken[definer] = found
    return ""


def _asked(definer: type, found: object) -> str:
    if not isinstance(found, types.FunctionType):
        return f"has a {type(found).__name__} for its forward, not a function"
    if not found.__code__.co_argcount and not found.__code__.co_flags & 0x04:
        return "has a forward that takes no module"
    try:
        definer.forward = found  # type: ignore[attr-defined]  # the very same: nothing changes
    except Exception:  # a metaclass may raise anything
        return "does not let its attributes be set"
    return "" if vars(definer).get("forward") is found else "changes what is assigned to it"
