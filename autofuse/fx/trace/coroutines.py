"""Closes coroutines that a run of autofuse's own has created: Python warns of a coroutine that nothing awaits."""

from __future__ import annotations

import inspect
from typing import Any

from autofuse.torch_private import pytree


def close_coroutines(result: Any) -> bool:
    """Close the coroutines in the result of a forward, so that they cause no warning. Returns whether there are any."""
    found = [part for part in pytree.tree_leaves(result) if inspect.iscoroutine(part)]
    for coroutine in found:
        coroutine.close()
    return bool(found)
