"""Plain dataclasses to and from what JSON holds. Knows types, not what they are about."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


class Malformed(ValueError):
    """Data is not what it should be; the message names the field and says what stands there."""


def dumped(value: Any) -> Any:
    """The same as dicts, lists, texts and numbers; infinities and NaN, which JSON cannot write, as None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: dumped(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): dumped(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [dumped(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def loaded(kind: type[_T], value: Any, where: str = "") -> _T:
    """What `dumped` made of a `kind`. Fields that are missing take their default; unknown ones are passed over.

    Raises Malformed where a field without a default is missing, or a value is of another type.
    """
    result: _T = _loaded(kind, value, where or kind.__name__)
    return result


def _loaded(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(inner, value, where)
    if is_dataclass(kind):
        return _object(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*_require(value, (list, tuple), where))
    if origin is tuple:
        items = _require(value, (list, tuple), where)
        each = inner[:1] * len(items) if inner[-1] is Ellipsis else inner
        return tuple(_loaded(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(each, items, strict=True)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        entries = _require(value, (Mapping,), where)
        return {_key(inner[0], key): _loaded(inner[1], item, f"{where}.{key}") for key, item in entries.items()}
    if origin is Literal:
        if value not in inner:
            raise Malformed(f"{where} is {value!r}, and should be one of {', '.join(map(repr, inner))}.")
        return value
    if kind is float:
        return float(_require(value, (int, float), where))
    return _require(value, (kind,), where)


def _one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    return _loaded(next(k for k in kinds if k is not type(None)), value, where)


def _object(kind: Any, value: Any, where: str) -> Any:
    entries, hints = _require(value, (Mapping,), where), get_type_hints(kind)
    given = {
        field.name: _loaded(hints[field.name], entries[field.name], f"{where}.{field.name}")
        for field in fields(kind)
        if field.init and field.name in entries
    }
    try:
        return kind(**given)
    except TypeError as error:
        raise Malformed(f"{where} lacks a field: {error}.") from error


def _key(kind: Any, key: str) -> Any:
    return int(key) if kind is int else key


def _require(value: Any, kinds: tuple[type, ...], where: str) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(k.__name__ for k in kinds)
        raise Malformed(f"{where} is {value!r:.60}, and should be a {wanted}.")
    return value
