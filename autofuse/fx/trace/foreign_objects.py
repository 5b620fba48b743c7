"""Stand-ins for arguments that are neither tensors nor plain values: a cache, a mask object, a batch, a callback.

The graph records what forward does with an object and repeats it at each call. Plain attributes become guards. An
object
that cannot be copied, or whose use may have side effects, gets another stand-in, which refuses any use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from torch import Tensor, fx, nn

from autofuse.fx.trace.twin import SCALARS
from autofuse.fx.trace.user_code import is_user_code


def _inside(stand_in: ForeignObject | UnusableObject) -> dict[str, Any]:
    """The state of a stand-in itself."""
    found: dict[str, Any] = object.__getattribute__(stand_in, "_inside")
    return found


class ForeignObject:
    """The stand-in for an object.

    Args:
        keeper: the recorder. It records every use (foreign_calls.py).
        node: computes the object in the graph.
        real: a copy of the object.
        text: the guard text of the object; None if a guard cannot reach it.
    """

    def __init__(self, keeper: Any, node: Any, real: Any, text: str | None) -> None:
        object.__setattr__(self, "_inside", {"_keeper": keeper, "_node": node, "_real": real, "_text": text})

    __slots__ = ("__weakref__", "_inside")

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        if is_user_code(sys._getframe(1)):  # the program would write to it: `vars(meter)["last"] = x`
            _inside(self)["_keeper"].foreign_fact(self, "", None)  # always refused
        return _inside(self)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        kind = type(_inside(self)["_real"])
        return vars(kind).get("_autofuse_twin", kind)

    def __getattr__(self, name: str) -> Any:
        return _inside(self)["_keeper"].foreign_attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _inside(self)["_keeper"].foreign_store(self, name, value)

    def __delattr__(self, name: str) -> None:
        _inside(self)["_keeper"].foreign_fact(self, "", None)  # always refused

    def __getitem__(self, index: Any) -> Any:
        return _inside(self)["_keeper"].foreign_call(self, "__getitem__", (index,), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        _inside(self)["_keeper"].foreign_call(self, "__setitem__", (index, value), {})

    def __delitem__(self, index: Any) -> None:
        _inside(self)["_keeper"].foreign_call(self, "__delitem__", (index,), {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _inside(self)["_keeper"].foreign_call(self, "__call__", args, kwargs)

    def __len__(self) -> int:
        _inside(self)["_keeper"].foreign_answer(self, "__len__")
        count = len(_inside(self)["_real"])
        _inside(self)["_keeper"].foreign_fact(self, "len({0})", count)
        return count

    def __bool__(self) -> bool:
        for name in ("__bool__", "__len__"):
            _inside(self)["_keeper"].foreign_answer(self, name)
        answer = bool(_inside(self)["_real"])
        _inside(self)["_keeper"].foreign_fact(self, "bool({0})", answer)
        return answer

    def __iter__(self) -> Iterator[Any]:
        real = _inside(self)["_real"]
        if isinstance(real, dict) or type(self)._iterates_itself(real):
            _inside(self)["_keeper"].foreign_fact(self, "", None)  # always refused
        return iter([self[i] for i in range(len(self))])

    @staticmethod
    def _iterates_itself(real: Any) -> bool:
        """Whether a user class defines its own iteration, which may differ from its items by number."""
        return hasattr(type(real), "__iter__") and not type(real).__module__.startswith(("numpy", "transformers"))

    def __contains__(self, item: Any) -> bool:
        _inside(self)["_keeper"].foreign_answer(self, "__contains__")
        answer = item in _inside(self)["_real"]
        known = isinstance(item, (str, int))
        _inside(self)["_keeper"].foreign_fact(self, f"{item!r} in {{0}}" if known else "", answer)
        return answer

    __hash__ = None  # type: ignore[assignment]


class UnusableObject:
    """The stand-in for an object that must not be used in a trace: an iterator, a callback with side effects."""

    def __init__(self, keeper: Any, real: Any, text: str) -> None:
        object.__setattr__(self, "_inside", {"_keeper": keeper, "_real": real, "_text": text})

    __slots__ = ("__weakref__", "_inside")

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        if is_user_code(sys._getframe(1)):
            refuse_use(self)
        return _inside(self)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(_inside(self)["_real"])

    def __getattr__(self, name: str) -> Any:
        refuse_use(self)

    def __bool__(self) -> bool:
        if hasattr(type(_inside(self)["_real"]), "__len__") or hasattr(type(_inside(self)["_real"]), "__bool__"):
            refuse_use(self)
        return True

    __hash__ = None  # type: ignore[assignment]


def refuse_use(unusable: UnusableObject) -> NoReturn:
    """Refuse: forward uses the object or passes it on. The recorder raises Untraceable."""
    inside = _inside(unusable)
    inside["_keeper"].refuse_use(inside["_text"], type(inside["_real"]).__name__)
    raise AssertionError("a recorder refuses this")


_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
_COMPARISONS = "eq ne lt le gt ge"
_REFUSED_METHODS = (
    f"setattr delattr getitem setitem delitem call len iter next contains enter exit index int float {_COMPARISONS}"
)


def _refuse_operator(self: Any, *others: Any, **named: Any) -> Any:
    if type(self) is UnusableObject:
        refuse_use(self)
    _inside(self)["_keeper"].foreign_fact(self, "", None)  # always refused


def _refuse_any_use(self: Any, *others: Any, **named: Any) -> Any:
    refuse_use(self)


for _name in f"{_BINARY} {_COMPARISONS} neg pos abs invert int float index".split():
    setattr(ForeignObject, f"__{_name}__", _refuse_operator)
for _name in _BINARY.split():
    setattr(ForeignObject, f"__r{_name}__", _refuse_operator)
    setattr(ForeignObject, f"__i{_name}__", _refuse_operator)
for _name in _REFUSED_METHODS.split():
    setattr(UnusableObject, f"__{_name}__", _refuse_any_use)
for _name in _BINARY.split():
    setattr(UnusableObject, f"__{_name}__", _refuse_any_use)
    setattr(UnusableObject, f"__r{_name}__", _refuse_any_use)
ForeignObject.__hash__ = UnusableObject.__hash__ = None  # type: ignore[assignment]


def parts(foreign: ForeignObject) -> tuple[fx.Node, Any, str | None]:
    """The node, the object and the guard text of a stand-in."""
    inside = _inside(foreign)
    return inside["_node"], inside["_real"], inside["_text"]


def is_foreign(value: Any) -> bool:
    """Whether `value` is a stand-in. It has the `__class__` of its object, so isinstance would not show this."""
    return type(value) is ForeignObject


def is_unusable(value: Any) -> bool:
    """Whether `value` is a stand-in that refuses any use."""
    return type(value) is UnusableObject


def real_object(unusable: UnusableObject) -> Any:
    """The object behind the stand-in."""
    return _inside(unusable)["_real"]


def needs_stand_in(value: Any) -> bool:
    """Whether an argument or a result is neither plain, nor a tensor, nor a module."""
    return not isinstance(value, (*SCALARS, Tensor, nn.Module, list, tuple, dict))
