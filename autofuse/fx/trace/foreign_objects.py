"""A stand-in for an argument that is no tensor and no plain value: a cache, a mask object, a batch.

What forward does with it is written down and repeated at each call. Plain attributes become guards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, fx, nn

from autofuse.fx.trace.twin import SCALARS


class ForeignObject:
    """Stands for `real`, a copy of the object; `node` computes it; `text` is how a guard reaches it, if one can.

    `keeper` is the recorder, which is told of everything (attribute_reads.py: foreign_attribute, foreign_call,
    foreign_fact).
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
        vars(self)["_keeper"].foreign_fact(self, "", None)  # always refused

    def __getitem__(self, index: Any) -> Any:
        return vars(self)["_keeper"].foreign_call(self, "__getitem__", (index,), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        vars(self)["_keeper"].foreign_call(self, "__setitem__", (index, value), {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(self)["_keeper"].foreign_call(self, "__call__", args, kwargs)

    def __len__(self) -> int:
        count = len(vars(self)["_real"])
        vars(self)["_keeper"].foreign_fact(self, "len({0})", count)
        return count

    def __bool__(self) -> bool:
        answer = bool(vars(self)["_real"])
        vars(self)["_keeper"].foreign_fact(self, "bool({0})", answer)
        return answer

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])

    def __contains__(self, item: Any) -> bool:
        answer = item in vars(self)["_real"]
        vars(self)["_keeper"].foreign_fact(self, f"{item!r} in {{0}}", answer)
        return answer

    __hash__ = None  # type: ignore[assignment]


def parts(foreign: ForeignObject) -> tuple[fx.Node, Any, str | None]:
    """The node, the object and the guard text of a stand-in."""
    inside = vars(foreign)
    return inside["_node"], inside["_real"], inside["_text"]


def is_foreign(value: Any) -> bool:
    """Whether `value` is a stand-in; asking its class would ask the object's."""
    return type(value) is ForeignObject


def needs_stand_in(value: Any) -> bool:
    """Whether an argument or a result is neither plain nor a tensor nor a module."""
    return not isinstance(value, (*SCALARS, Tensor, nn.Module, list, tuple, dict))
