"""Whether code queries the classes of values: `isinstance(self.weight, Quantized)`.

A stand-in for a tensor is a plain tensor, and a later call may pass a tensor of another class. So if code queries
classes, the class of each tensor that it reads is guarded.
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

_QUERIES = (isinstance, issubclass, type)
_NAMES = frozenset({"__class__", "isinstance", "issubclass", "type"})  # as attributes
_TORCH_CLASSES = frozenset({"Parameter", "Buffer", "DTensor", "FakeTensor"})
_PLAIN_CLASSES = (Tensor, nn.Parameter)


def class_guard(ran: Iterable[Execution], values: Iterable[object] = ()) -> str:
    """The test of the class of a tensor, for `str.format`: `{0}` is the tensor, `{1}` the class.

    A sharded tensor belongs to a class of torch. While its module runs, the class may differ from before. This matters
    if
    the code names such a class.

    Args:
        ran: the functions that ran.
        held: other functions that the code may call, such as attributes.

    Returns:
        The test; "" if no function that ran queries a class.
    """
    ran = list(ran)
    if not any(map(_queries_classes, ran)) and not any(map(_dispatches, values)):
        return ""
    # Code that names a class of torch may distinguish a sharded parameter from an ordinary one.
    exact = any(not _TORCH_CLASSES.isdisjoint(_names_in(each)) for each in ran)
    return "type({0}) is {1}" if exact else "_of_torchs_class({0}, {1})"


def is_guarded(cls: type) -> bool:
    """Whether a guard can test the class of a tensor that belongs to the module."""
    return cls in _PLAIN_CLASSES


def is_torch_class(cls: type) -> bool:
    """Whether a class belongs to torch or replaces such a class."""
    return cls is LazyMask or cls.__module__.partition(".")[0] == "torch"


@cache
def keeps_functions(cls: type) -> bool:
    """Whether a tensor class overrides none of torch's functions."""
    if cls is LazyMask:  # its override only reports reads of numbers
        return True
    found: Any = cls.__torch_function__  # type: ignore[attr-defined]
    return getattr(found, "__func__", found) in (Tensor.__torch_function__.__func__, disabled_torch_function)  # type: ignore[attr-defined]


def _names_in(ran: Execution) -> set[str]:
    return {load.name for load in ran.loads()} | {name for name, _ in facts_of(ran.code).names}


def _queries_classes(ran: Execution) -> bool:
    names = {name for name, _ in facts_of(ran.code).names}
    if not names.isdisjoint(_NAMES) or any(step.opname == "MATCH_CLASS" for step in dis.get_instructions(ran.code)):
        return True
    return any(_is_query(ran, load.name, root_of(ran, load)) for load in ran.loads())


def _is_query(ran: Execution, name: str, value: object) -> bool:
    found = value if name in ran.namespace else vars(builtins).get(name)
    return _dispatches(value) or any(v is query for v in (value, found) for query in _QUERIES)


def _dispatches(value: object) -> bool:
    """Whether a function depends on the class of its argument: functools.singledispatch."""
    return isinstance(value, types.FunctionType) and "registry" in vars(value)
