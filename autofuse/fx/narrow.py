"""Calling a child for only that part of its result which the caller reads.

Only a caller that was rewritten asks for it, by name; whoever calls the child as a module gets the whole result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn

from autofuse.fx.install import narrow_forward
from autofuse.fx.pristine import is_watched
from autofuse.fx.records import Path


@cache
def narrow_caller(unread: frozenset[Path]) -> Callable[..., Any]:
    """A function that calls a child, with None for what stands at the `unread` paths where nobody watches the child."""

    def call_narrow(child: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_watched(child) or type(child).__call__ is not nn.Module.__call__:
            return child(*args, **kwargs)
        forward = narrow_forward(child, unread)
        return child(*args, **kwargs) if forward is None else forward(child, *args, **kwargs)

    return call_narrow


def is_narrow_call(target: Any) -> bool:
    """Whether a node calls a child this way."""
    return getattr(target, "__name__", "") == "call_narrow"
