"""JSON Schema (draft 2020-12) of dataclasses as autofuse/results/data.py writes them.

This file depends on types only, not on what the data means.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from autofuse.results.data import has_default, is_named_tuple, key_of

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAMES = {str: "string", bool: "boolean", int: "integer"}


def schema(kind: type, constants: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of what `dumped` returns for a `kind`, with the `constants` as additional fields.

    Objects may have further fields, because later versions add some. Every number that is not an integer may be null,
    because JSON has no NaN and no infinity.
    """
    definitions: dict[str, Any] = {}
    whole = _object(kind, definitions)
    head = {name: {"const": value} for name, value in constants.items()}
    return {
        "$schema": _DIALECT,
        "title": kind.__name__,
        **whole,
        "properties": head | whole["properties"],
        "required": [*head, *whole["required"]],
        "$defs": dict(sorted(definitions.items())),
    }


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "type": "object",
        "properties": {key_of(field): _schema_of(hints[field.name], definitions) for field in fields(kind)},
        "required": [key_of(field) for field in fields(kind) if not has_default(field)],
    }


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if kind is float:
        return {"type": ["number", "null"]}
    if kind in _NAMES:
        return {"type": _NAMES[kind]}
    if origin in (Union, types.UnionType):
        (kind,) = (k for k in inner if k is not type(None))
        return _or_null(_schema_of(kind, definitions))
    if is_dataclass(kind):
        return _reference(kind, definitions)
    if is_named_tuple(kind):
        return _tuple_schema(list(get_type_hints(kind).values()), definitions)
    if origin is tuple:
        return _tuple_schema(inner, definitions) if inner[-1] is not Ellipsis else _array(inner[0], definitions)
    if origin is Literal:
        return {"enum": list(inner)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema_of(inner[1], definitions)}
    raise TypeError(f"No schema is defined for {kind}. Add one here, and a reader in data.py.")


def _array(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": _schema_of(kind, definitions)}


def _tuple_schema(kinds: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    items = [_schema_of(kind, definitions) for kind in kinds]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _or_null(one: dict[str, Any]) -> dict[str, Any]:
    kind = one.get("type")
    if isinstance(kind, list):
        return one
    return {"type": [kind, "null"]} if set(one) == {"type"} else {"anyOf": [one, {"type": "null"}]}


def _reference(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # set first, because a class may contain itself
        definitions[name] = _object(kind, definitions)
    return {"$ref": f"#/$defs/{name}"}
