"""Restores a twin after a forward: caches that the forward fills and attributes that it sets.

A twin is traced many times, alone and as a part of its parents. Each trace must find the state of the user's module,
not what an earlier trace left behind.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_CONTAINERS = (list, dict, set)  # exact types only: a subclass may do more than hold items


@contextmanager
def restore_on_exit(root: nn.Module) -> Iterator[None]:
    """Restores, on exit, the attributes of `root` and of all modules below it, and the content of their containers."""
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
    """Returns the containers that a module holds, such as its table of parameters, with a copy of each."""
    return [(v, copy.copy(v)) for v in vars(module).values() if type(v) in _CONTAINERS]


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    elif list(map(id, _items(container))) != list(map(id, _items(content))):
        container.clear()
        container.update(content)


def _items(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else list(container)
