"""Closes coroutines that a run of autofuse's own has created: Python warns of a coroutine that nothing awaits."""

from __future__ import annotations

import inspect
from typing import Any

from autofuse.torch_private import pytree


def close_coroutines(result: Any) -> None:
    """Close the coroutines in the result of a forward, which then run no code and cause no warning."""
    for part in pytree.tree_leaves(result):
        if inspect.iscoroutine(part):
            part.close()
