"""Calls a child's narrow forward, which computes only the parts of the result that the caller reads.

Only a rewritten caller calls it. A call of the child as a module returns the full result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

from torch import nn

from autofuse.fx.install.dispatch import call_without_dropout, narrow_forward, narrow_name
from autofuse.fx.trace.paths import Path, tail_of
from autofuse.fx.trace.plain_children import is_watched

Enter = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], AbstractContextManager[Any]]
_around: list[Enter] = []


@contextmanager
def around_narrow_calls(enter: Enter) -> Iterator[None]:
    """Enter `enter(child, args, kwargs)` around every narrow call in the block. Narrow calls bypass `__call__`."""
    _around.append(enter)
    try:
        yield
    finally:
        _around.pop()


@cache
def narrow_caller(unread: frozenset[Path]) -> Callable[..., Any]:
    """A function that calls a child. Unless hooks watch the child, the result has None at the `unread` paths."""
    tail, name = tail_of(unread), narrow_name(unread)
    dropout = tail.dropout if tail is not None else None

    def call_narrow(child: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # Hooks run only if the child is called as a module.
        forward = None if is_watched(child) else narrow_forward(child, name)
        if forward is not None and _around:
            with _around[-1](child, args, kwargs):
                return forward(child, *args, **kwargs)
        if forward is not None:
            return forward(child, *args, **kwargs)
        return child(*args, **kwargs) if dropout is None else call_without_dropout(child, dropout, args, kwargs)

    return call_narrow


def is_narrow_call(target: Any) -> bool:
    """Whether the target of a node is a narrow call."""
    return getattr(target, "__name__", "") == "call_narrow"
