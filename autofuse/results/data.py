"""Converts plain dataclasses to and from JSON values. This file depends on types only, not on what the data means."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_WORDS = {
    Mapping: "an object", list: "an array", str: "a string", int: "an integer", float: "a number", bool: "a boolean",
}  # fmt: skip


class Malformed(ValueError):
    """Data has the wrong form. The message names the field and what was found."""


def dumped(value: Any) -> Any:
    """`value` as dicts, lists, strings and numbers. Infinities and NaN, which JSON does not have, become None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key_of(field): dumped(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): dumped(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [dumped(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def loaded(kind: type[_T], value: Any, where: str = "") -> _T:
    """The inverse of `dumped` for a value of type `kind`.

    A missing field takes its default, and an unknown field is ignored. A null in place of a number becomes NaN. Raises
    Malformed if a field without a default is missing, or a value has another type.
    """
    result: _T = _loaded(kind, value, where or kind.__name__)
    return result


def _loaded(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _loaded(_without_none(inner), value, where)
    if is_dataclass(kind):
        return _object(kind, value, where)
    if is_named_tuple(kind):
        return kind(*_items(list(get_type_hints(kind).values()), value, where))
    if origin is tuple:
        return _tuple(inner, value, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(inner, value, where)
    if origin is Literal:
        return _choice(inner, value, where)
    return _number(value, where) if kind is float else _require(value, (kind,), where)


def _without_none(kinds: tuple[Any, ...]) -> Any:
    """The X of `X | None`. Results have no other unions."""
    (kind,) = (k for k in kinds if k is not type(None))
    return kind


def _object(kind: Any, value: Any, where: str) -> Any:
    entries, hints = _require(value, (Mapping,), where), get_type_hints(kind)
    given = {
        field.name: _loaded(hints[field.name], entries[key_of(field)], f"{where}.{key_of(field)}")
        for field in fields(kind)
        if field.init and key_of(field) in entries
    }
    missing = [key_of(f) for f in fields(kind) if f.init and f.name not in given and not has_default(f)]
    if missing:
        raise Malformed(f"{where} lacks {', '.join(missing)}.")
    return kind(**given)


def key_of(field: Field[Any]) -> str:
    """The name of a field in JSON. The metadata gives it if the name is a keyword of Python ("class")."""
    return str(field.metadata.get("key", field.name))


def has_default(field: Field[Any]) -> bool:
    """Whether data may omit the field."""
    return field.default is not MISSING or field.default_factory is not MISSING


def _tuple(inner: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    items = _require(value, (list, tuple), where)
    kinds = inner[:1] * len(items) if inner[-1] is Ellipsis else inner
    return tuple(_items(kinds, items, where))


def _items(kinds: Sequence[Any], value: Any, where: str) -> list[Any]:
    items = _require(value, (list, tuple), where)
    if len(items) != len(kinds):
        raise Malformed(f"{where} has {len(items)} entries, but should have {len(kinds)}.")
    return [_loaded(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, items, strict=True))]


def _mapping(inner: tuple[Any, ...], value: Any, where: str) -> dict[Any, Any]:
    entries = _require(value, (Mapping,), where)
    return {str(key): _loaded(inner[1], item, f"{where}.{key}") for key, item in entries.items()}


def _choice(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in choices:
        raise Malformed(f"{where} is {value!r}, and should be one of {', '.join(map(repr, choices))}.")
    return value


def _number(value: Any, where: str) -> float:
    """A number. null becomes NaN, because NaN is written as null: a diverged loss stays NaN.

    Raises:
        Malformed: The value is no number, or too large for one.
    """
    try:
        return math.nan if value is None else float(_require(value, (int, float), where))
    except OverflowError as error:
        raise Malformed(f"{where} is too large to be a number.") from error


def is_named_tuple(kind: Any) -> bool:
    """Whether a type is written as an array with one entry for each field."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _require(value: Any, kinds: tuple[type, ...], where: str) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(_WORDS.get(k, k.__name__) for k in kinds if k is not tuple)
        raise Malformed(f"{where} is {value!r:.60}, and should be {wanted}.")
    return value
