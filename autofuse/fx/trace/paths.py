"""Takes apart, and rebuilds, small objects that only carry values, such as dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable
from typing import Any

Path = tuple[Hashable, ...]  # keys, indices and field names, the outermost first


@dataclasses.dataclass(frozen=True)
class Tail:
    """Ends a path that means the result of a dropout, not the value at the path.

    Attributes:
        dropout: The name of the module's dropout that is applied to the value.
    """

    dropout: str


def tail_of(paths: Collection[Path]) -> Tail | None:
    """Returns the tail among some paths, or None. At most one path has a tail."""
    return next((p[-1] for p in paths if p and isinstance(p[-1], Tail)), None)


_MAKERS: dict[tuple[type, tuple[str, ...]], Callable[..., Any]] = {}


def is_record(value: Any) -> bool:
    """Returns whether `value` is a dataclass and not also a container, as a ModelOutput is also a dict."""
    plain = dataclasses.is_dataclass(value) and not isinstance(value, (type, dict, list, tuple))
    return plain and hasattr(value, "__dict__")


def record_maker(cls: type, *names: str) -> Callable[..., Any]:
    """Returns a function that makes a `cls` with these fields without calling its constructor.

    The function is the same object for each class and names, so that equal graphs stay equal.
    """
    if (cls, names) not in _MAKERS:
        _MAKERS[cls, names] = _new_maker(cls, names)
    return _MAKERS[cls, names]


def _new_maker(cls: type, names: tuple[str, ...]) -> Callable[..., Any]:
    def rebuilt(*values: Any) -> Any:
        record: Any = object.__new__(cls)
        vars(record).update(zip(names, values, strict=True))
        return record

    rebuilt.__name__ = rebuilt.__qualname__ = f"rebuilt_{cls.__name__}"
    return rebuilt
