"""Stand-ins for arguments that are no tensor and no plain value: a cache, a mask object, a batch; a callback.

What forward does with an object is written down and repeated at each call; plain attributes become guards. What cannot
be copied, or may do more than change itself, stands under another stand-in, which nobody may use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from torch import Tensor, fx, nn

from autofuse.fx.trace.twin import SCALARS


class ForeignObject:
    """Stands for `real`, a copy of the object; `node` computes it; `text` is how a guard reaches it, if one can.

    `keeper` is the recorder, which records every use (foreign_calls.py).
    """

    def __init__(self, keeper: Any, node: Any, real: Any, text: str | None) -> None:
        vars(self).update(_keeper=keeper, _node=node, _real=real, _text=text)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        kind = type(vars(self)["_real"])
        return vars(kind).get("_autofuse_twin", kind)

    def __getattr__(self, name: str) -> Any:
        return vars(self)["_keeper"].foreign_attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)["_keeper"].foreign_store(self, name, value)

    def __delattr__(self, name: str) -> None:
        vars(self)["_keeper"].foreign_fact(self, "", None)  # always refused

    def __getitem__(self, index: Any) -> Any:
        return vars(self)["_keeper"].foreign_call(self, "__getitem__", (index,), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        vars(self)["_keeper"].foreign_call(self, "__setitem__", (index, value), {})

    def __delitem__(self, index: Any) -> None:
        vars(self)["_keeper"].foreign_call(self, "__delitem__", (index,), {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(self)["_keeper"].foreign_call(self, "__call__", args, kwargs)

    def __len__(self) -> int:
        vars(self)["_keeper"].foreign_answer(self, "__len__")
        count = len(vars(self)["_real"])
        vars(self)["_keeper"].foreign_fact(self, "len({0})", count)
        return count

    def __bool__(self) -> bool:
        for name in ("__bool__", "__len__"):
            vars(self)["_keeper"].foreign_answer(self, name)
        answer = bool(vars(self)["_real"])
        vars(self)["_keeper"].foreign_fact(self, "bool({0})", answer)
        return answer

    def __iter__(self) -> Iterator[Any]:
        real = vars(self)["_real"]
        if isinstance(real, dict) or type(self)._iterates_itself(real):
            vars(self)["_keeper"].foreign_fact(self, "", None)  # always refused
        return iter([self[i] for i in range(len(self))])

    @staticmethod
    def _iterates_itself(real: Any) -> bool:
        """Whether the class is the user's, and may go through other things than its items by number."""
        return hasattr(type(real), "__iter__") and not type(real).__module__.startswith(("numpy", "transformers"))

    def __contains__(self, item: Any) -> bool:
        vars(self)["_keeper"].foreign_answer(self, "__contains__")
        answer = item in vars(self)["_real"]
        known = isinstance(item, (str, int))
        vars(self)["_keeper"].foreign_fact(self, f"{item!r} in {{0}}" if known else "", answer)
        return answer

    __hash__ = None  # type: ignore[assignment]


class Untouchable:
    """Stands for what must not be used while a forward is read: an iterator, a callback that others hear of."""

    def __init__(self, keeper: Any, real: Any, text: str) -> None:
        vars(self).update(_keeper=keeper, _real=real, _text=text)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(vars(self)["_real"])

    def __getattr__(self, name: str) -> Any:
        use(self)

    def __bool__(self) -> bool:
        if hasattr(type(vars(self)["_real"]), "__len__") or hasattr(type(vars(self)["_real"]), "__bool__"):
            use(self)
        return True

    __hash__ = None  # type: ignore[assignment]


def use(untouchable: Untouchable) -> NoReturn:
    """Forward uses it, or hands it on: Untraceable is raised."""
    inside = vars(untouchable)
    inside["_keeper"].refuse_use(inside["_text"], type(inside["_real"]).__name__)
    raise AssertionError("a recorder refuses this")


_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
_COMPARED = "eq ne lt le gt ge"
_UNTOUCHED = (
    f"setattr delattr getitem setitem delitem call len iter next contains enter exit index int float {_COMPARED}"
)


def _refused(self: Any, *others: Any, **named: Any) -> Any:
    if type(self) is Untouchable:
        use(self)
    vars(self)["_keeper"].foreign_fact(self, "", None)  # always refused


def _untouched(self: Any, *others: Any, **named: Any) -> Any:
    use(self)


for _name in f"{_BINARY} {_COMPARED} neg pos abs invert int float index".split():
    setattr(ForeignObject, f"__{_name}__", _refused)
for _name in _BINARY.split():
    setattr(ForeignObject, f"__r{_name}__", _refused)
    setattr(ForeignObject, f"__i{_name}__", _refused)
for _name in _UNTOUCHED.split():
    setattr(Untouchable, f"__{_name}__", _untouched)
for _name in _BINARY.split():
    setattr(Untouchable, f"__{_name}__", _untouched)
    setattr(Untouchable, f"__r{_name}__", _untouched)
ForeignObject.__hash__ = Untouchable.__hash__ = None  # type: ignore[assignment]


def parts(foreign: ForeignObject) -> tuple[fx.Node, Any, str | None]:
    """The node, the object and the guard text of a stand-in."""
    inside = vars(foreign)
    return inside["_node"], inside["_real"], inside["_text"]


def is_foreign(value: Any) -> bool:
    """Whether `value` is a stand-in; asking its class would ask the object's."""
    return type(value) is ForeignObject


def is_untouchable(value: Any) -> bool:
    """Whether `value` stands for what must not be used."""
    return type(value) is Untouchable


def real_of(untouchable: Untouchable) -> Any:
    """What it stands for."""
    return vars(untouchable)["_real"]


def needs_stand_in(value: Any) -> bool:
    """Whether an argument or a result is neither plain nor a tensor nor a module."""
    return not isinstance(value, (*SCALARS, Tensor, nn.Module, list, tuple, dict))
