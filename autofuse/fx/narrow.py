"""Calling a child for only that part of its result which the caller reads.

Only a caller that was rewritten asks for it, by name; whoever calls the child as a module gets the whole result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn

from autofuse.fx.install import call_undropped, narrow_forward, narrow_name
from autofuse.fx.pristine import is_watched
from autofuse.fx.records import Path, tail_of


@cache
def narrow_caller(unread: frozenset[Path]) -> Callable[..., Any]:
    """A function that calls a child, with None for what stands at the `unread` paths where nobody watches the child."""
    tail, name = tail_of(unread), narrow_name(unread)
    dropout = tail.dropout if tail is not None else None

    def call_narrow(child: nn.Module, *args: Any, **kwargs: Any) -> Any:
        watched = is_watched(child) or type(child).__call__ is not nn.Module.__call__
        forward = None if watched else narrow_forward(child, name)
        if forward is not None:
            return forward(child, *args, **kwargs)
        return child(*args, **kwargs) if dropout is None else call_undropped(child, dropout, args, kwargs)

    return call_narrow


def is_narrow_call(target: Any) -> bool:
    """Whether a node calls a child this way."""
    return getattr(target, "__name__", "") == "call_narrow"
