"""Tensors in nested values: one walk that finds them and one that replaces them. What is opened is the caller's to say.

Objects of other libraries (caches, batches) hold tensors too. Who only reads may open all that can be gone through; who
puts something else in a tensor's place opens plain containers, for others may not be rebuilt from what they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

Parts = Callable[[Any], Iterable[Any]]


def parts(value: Any) -> Iterable[Any]:
    """What lies in a tuple, list, mapping or dataclass of any class; nothing for all else."""
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, Mapping):  # a ModelOutput is one, and a dataclass besides
        return value.values()
    if not is_dataclass(value) or isinstance(value, type):
        return ()
    return vars(value).values() if hasattr(value, "__dict__") else [getattr(value, f.name) for f in fields(value)]


def plain_parts(value: Any) -> Iterable[Any]:
    """What lies in a tuple, list or dict that is of no class derived from these."""
    kind = type(value)
    return value if kind is tuple or kind is list else value.values() if kind is dict else ()


def tensors_in(value: Any, opened: Parts = parts) -> Iterator[Tensor]:
    """Every tensor in `value`, in order; one that lies in two places comes twice."""
    if isinstance(value, Tensor):
        yield value
        return
    for part in opened(value):
        yield from tensors_in(part, opened)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `function(x)` in the place of everything in it that is no plain container; these are made anew."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([mapped(function, item) for item in value])
    if kind is dict:
        return {key: mapped(function, item) for key, item in value.items()}
    return function(value)
