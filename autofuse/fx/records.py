"""Small objects that only carry values, such as dataclasses: taken apart and put together again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

Path = tuple[Hashable, ...]  # keys, indices and field names, from the outside in


def is_record(value: Any) -> bool:
    """Whether `value` is a dataclass that is nothing else besides (a ModelOutput is also a dict)."""
    return (
        dataclasses.is_dataclass(value)
        and not isinstance(value, (type, dict, list, tuple))
        and hasattr(value, "__dict__")
    )


@cache
def record_maker(cls: Hashable, *names: str) -> Callable[..., Any]:
    """A function that makes a `cls` with these fields, without running its constructor."""

    def rebuilt(*values: Any) -> Any:
        made = object.__new__(cls)  # type: ignore[call-overload]
        vars(made).update(zip(names, values, strict=True))
        return made

    rebuilt.__name__ = rebuilt.__qualname__ = f"rebuilt_{cls.__name__}"  # type: ignore[attr-defined]
    return rebuilt
