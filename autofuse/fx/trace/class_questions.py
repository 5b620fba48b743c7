"""Whether code asks for the classes of values: `isinstance(self.weight, Quantized)`.

A stand-in for a tensor answers as a plain tensor, and a tensor of another class may come later. So where code asks, the
class of each tensor that it reads is guarded.
"""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Iterable
from functools import cache
from typing import Any

from torch import Tensor, nn

from autofuse.fx.trace.code_facts import facts_of
from autofuse.fx.trace.roots import root_of
from autofuse.fx.trace.user_code import Execution
from autofuse.ops.lazy_masks import LazyMask
from autofuse.torch_private import disabled_torch_function

_QUESTIONS = (isinstance, issubclass, type)
_NAMES = frozenset({"__class__", "isinstance", "issubclass", "type"})  # as attributes
_TORCHS = frozenset({"Parameter", "Buffer", "DTensor", "FakeTensor"})
_PLAIN = (Tensor, nn.Parameter)


def class_guard(ran: Iterable[Execution], held: Iterable[object] = ()) -> str:
    """The test of the class of a tensor: `{0}` is the tensor, `{1}` the class; "" where no function that ran asks.

    `held`: what else the code may call, the functions that are attributes.

    A sharded tensor is of a class of torch's. While its module runs it may be another than before, which matters where
    the code names such a class.
    """
    ran = list(ran)
    if not any(map(_asks, ran)) and not any(map(_dispatches, held)):
        return ""
    exact = any(not _TORCHS.isdisjoint(_words(each)) for each in ran)
    return "type({0}) is {1}" if exact else "_of_torchs_class({0}, {1})"


def is_guarded(cls: type) -> bool:
    """Whether a tensor of the module's own is of a class that a guard can ask for."""
    return cls in _PLAIN


def is_torchs(cls: type) -> bool:
    """Whether a class is one of torch's own, or stands for one."""
    return cls is LazyMask or cls.__module__.partition(".")[0] == "torch"


@cache
def keeps_functions(cls: type) -> bool:
    """Whether torch's functions compute of tensors of a class what they compute of any: none is overridden."""
    if cls is LazyMask:  # it only says where numbers are read past the functions
        return True
    found: Any = cls.__torch_function__  # type: ignore[attr-defined]
    return getattr(found, "__func__", found) in (Tensor.__torch_function__.__func__, disabled_torch_function)  # type: ignore[attr-defined]


def _words(ran: Execution) -> set[str]:
    return {load.name for load in ran.loads()} | {name for name, _ in facts_of(ran.code).names}


def _asks(ran: Execution) -> bool:
    names = {name for name, _ in facts_of(ran.code).names}
    if not names.isdisjoint(_NAMES) or any(step.opname == "MATCH_CLASS" for step in dis.get_instructions(ran.code)):
        return True
    return any(_is_question(ran, load.name, root_of(ran, load)) for load in ran.loads())


def _is_question(ran: Execution, name: str, value: object) -> bool:
    found = value if name in ran.namespace else vars(builtins).get(name)
    return _dispatches(value) or any(v is question for v in (value, found) for question in _QUESTIONS)


def _dispatches(value: object) -> bool:
    """Whether it goes by the class of its argument: functools.singledispatch."""
    return isinstance(value, types.FunctionType) and "registry" in vars(value)
