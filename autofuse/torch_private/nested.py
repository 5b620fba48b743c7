"""Tensors in nested values: one function that finds them, and one that replaces them.

Objects of other libraries (caches, batches) contain tensors too. Code that only reads may open everything that it can
iterate over. Code that replaces tensors opens plain containers only, because others may not be rebuilt from their
parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

Parts = Callable[[Any], Iterable[Any]]


def parts(value: Any) -> Iterable[Any]:
    """The parts of a tuple, list, mapping or dataclass of any class; none for other values."""
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, Mapping):  # checked first: a ModelOutput is a mapping and a dataclass
        return value.values()
    if not is_dataclass(value) or isinstance(value, type):
        return ()
    return vars(value).values() if hasattr(value, "__dict__") else [getattr(value, f.name) for f in fields(value)]


def plain_parts(value: Any) -> Iterable[Any]:
    """The parts of a plain tuple, list or dict, not of a subclass."""
    kind = type(value)
    return value if kind is tuple or kind is list else value.values() if kind is dict else ()


def tensors_in(value: Any, opened: Parts = parts) -> Iterator[Tensor]:
    """Every tensor in `value`, in order. A tensor in two places comes twice. `opened` returns the parts of a value."""
    if isinstance(value, Tensor):
        yield value
        return
    for part in opened(value):
        yield from tensors_in(part, opened)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `function(x)` in place of everything that is not a plain container. Containers are copied."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([mapped(function, item) for item in value])
    if kind is dict:
        return {key: mapped(function, item) for key, item in value.items()}
    return function(value)
