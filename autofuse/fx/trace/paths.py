"""Small objects that only carry values, such as dataclasses: taken apart and put together again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable
from typing import Any

Path = tuple[Hashable, ...]  # keys, indices and field names, from the outside in


@dataclasses.dataclass(frozen=True)
class Tail:
    """Ends a path: not the value there, but what the module's dropout of this name makes it of."""

    dropout: str


def tail_of(paths: Collection[Path]) -> Tail | None:
    """The tail among some paths; there is one at most."""
    return next((p[-1] for p in paths if p and isinstance(p[-1], Tail)), None)


_MAKERS: dict[tuple[type, tuple[str, ...]], Callable[..., Any]] = {}


def is_record(value: Any) -> bool:
    """Whether `value` is a dataclass that is nothing else besides (a ModelOutput is also a dict)."""
    plain = dataclasses.is_dataclass(value) and not isinstance(value, (type, dict, list, tuple))
    return plain and hasattr(value, "__dict__")


def record_maker(cls: type, *names: str) -> Callable[..., Any]:
    """A function that makes a `cls` with these fields, without running its constructor; one for each class."""
    if (cls, names) not in _MAKERS:
        _MAKERS[cls, names] = _maker(cls, names)
    return _MAKERS[cls, names]


def _maker(cls: type, names: tuple[str, ...]) -> Callable[..., Any]:
    def rebuilt(*values: Any) -> Any:
        made: Any = object.__new__(cls)
        vars(made).update(zip(names, values, strict=True))
        return made

    rebuilt.__name__ = rebuilt.__qualname__ = f"rebuilt_{cls.__name__}"
    return rebuilt
