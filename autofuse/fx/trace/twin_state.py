"""What a forward leaves behind in a twin, undone: caches that it fills, attributes that it sets.

A twin is traced many times, alone and as part of what calls it. Each trace must find what the user's module holds, not
what another trace has left there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_CONTAINERS = (list, dict, set)  # exactly these: what derives from them may do more than hold things


@contextmanager
def as_it_was(root: nn.Module) -> Iterator[None]:
    """Attributes of `root` and of all modules below it, and what their containers hold, are put back at the end."""
    before = [(module, dict(vars(module)), _containers(module)) for module in root.modules()]
    try:
        yield
    finally:
        for module, attributes, containers in before:
            vars(module).clear()
            vars(module).update(attributes)
            for container, content in containers:
                _refill(container, content)


def _containers(module: nn.Module) -> list[tuple[Any, Any]]:
    """The containers that a module holds, its tables of parameters, buffers and children among them, with a copy."""
    return [(v, copy.copy(v)) for v in vars(module).values() if type(v) in _CONTAINERS]


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    elif list(map(id, _items(container))) != list(map(id, _items(content))):
        container.clear()
        container.update(content)


def _items(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else list(container)
