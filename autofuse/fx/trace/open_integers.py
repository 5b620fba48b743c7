"""Integers of a module that a forward may only pass on, such as the index of a layer in a cache.

Layers of one kind often differ in such a number. While one of them is traced, a stand-in is in the number's place. If
forward only passes it to methods of arguments, the graph reads the attribute at each call, so the trace holds for every
number. Any other use of the stand-in ends this attempt: the forward is traced again with the number itself.
"""

from __future__ import annotations

import dis
import itertools
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import nn

from autofuse.fx.trace.code_facts import facts_of
from autofuse.fx.trace.identity_tests import compares_objects
from autofuse.fx.trace.user_code import Execution

_SUPPRESSES = "suppress"  # contextlib.suppress


class OpenIntegers:
    """The integers of one module that are open in one trace.

    Args:
        names: The attributes that hold them.

    Attributes:
        read: Those that forward read.
        used: Whether forward used the number of one of them.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = frozenset(names)
        self.read: set[str] = set()
        self.used = False

    @contextmanager
    def replaced(self, twin: nn.Module) -> Iterator[None]:
        """In the block, the attributes of `twin` are stand-ins."""
        inside = vars(twin)
        before = {name: inside[name] for name in self.names}
        inside.update({name: OpenInteger(self, name, value) for name, value in before.items()})
        try:
            yield
        finally:
            inside.update({name: value for name, value in before.items() if type(inside.get(name)) is OpenInteger})

    def may_be_noticed(self, ran: Iterable[Execution]) -> bool:
        """Whether forward may have used a number, or may have behaved differently because it saw a stand-in."""
        return self.used or bool(self.read) and any(_may_notice(each) for each in ran if not each.paused)


class OpenInteger:
    """The stand-in for an integer. It computes like the integer, and notes that its number was used."""

    def __init__(self, keeper: OpenIntegers, name: str, value: int) -> None:
        self._keeper, self.attribute, self._value = keeper, name, value

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return int

    @property
    def example(self) -> int:
        """The number in the example call, for code that treats it like any other number."""
        return self._value

    def used(self) -> int:
        """The number, which is noted as used."""
        self._keeper.used = True
        return self._value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.used(), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.used().__reduce_ex__(protocol)

    def __copy__(self) -> int:
        return self.used()

    def __deepcopy__(self, memo: Any) -> int:
        return self.used()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("the number of a layer is not known here", self.used())


def _number(x: Any) -> Any:
    return x.used() if type(x) is OpenInteger else x


def _computing(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *others: function(self.used(), *map(_number, others))


def _computing_reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: function(other, self.used())


_BINARY = "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift"
for _name in f"{_BINARY} eq ne lt le gt ge neg pos abs invert index".split():
    setattr(OpenInteger, f"__{_name.rstrip('_')}__", _computing(getattr(operator, _name)))
for _name in _BINARY.split():
    setattr(OpenInteger, f"__r{_name.rstrip('_')}__", _computing_reflected(getattr(operator, _name)))
for _function in (bool, int, float, complex, hash, str, repr, round, divmod, format):
    setattr(OpenInteger, f"__{_function.__name__}__", _computing(_function))
for _name in ("trunc", "floor", "ceil"):
    setattr(OpenInteger, f"__{_name}__", _computing(int))
setattr(OpenInteger, "__rdivmod__", _computing_reflected(divmod))  # noqa: B010


def _may_notice(ran: Execution) -> bool:
    """Whether code could tell a stand-in from a number without a method of the stand-in.

    It could ask for its type, compare it by `is`, or catch the error of a function that takes real integers only.
    """
    names = {load.name for load in facts_of(ran.code).loads} | {name for name, _ in facts_of(ran.code).names}
    asks = not names.isdisjoint(("type", "__class__", _SUPPRESSES))
    return asks or compares_objects(ran.code) or _catches_errors(ran.code)


@cache
def _catches_errors(code: types.CodeType) -> bool:
    """Whether code has an `except` clause."""
    steps = [s.opname for s in dis.get_instructions(code)]
    bare = any(a == "PUSH_EXC_INFO" and b == "POP_TOP" for a, b in itertools.pairwise(steps))
    return bare or "CHECK_EXC_MATCH" in steps or "CHECK_EG_MATCH" in steps
