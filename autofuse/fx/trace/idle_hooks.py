"""Forward hooks that a library leaves on a module permanently, and that do something only on request.

transformers registers hooks on every attention module at the first call with `output_attentions=True` and never removes
them. They collect the results of modules during such a call. At any other time they do nothing. This file knows the
libraries by the names of their functions and imports none of them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from typing import Any


def has_active_hook(hooks: Iterable[Any]) -> bool:
    """Whether any of a module's hooks does something now, as far as autofuse can tell."""
    return not all(map(_is_idle, hooks))


def _is_idle(hook: Any) -> bool:
    if not inspect.isfunction(hook) or (hook.__module__, hook.__name__) != _OUTPUT_CAPTURING:
        return False
    collector = getattr(sys.modules.get(hook.__module__), "_active_collector", None)
    key = inspect.getclosurevars(hook).nonlocals.get("key")
    if collector is None or key is None:
        return False
    collected = collector.get()
    return collected is None or key not in collected


def is_idle_collector(variable: Any) -> bool:
    """Whether a context variable is the one that those hooks read, and requests nothing now.

    transformers sets it to an empty dict during a call that requests nothing, and resets it afterwards.
    """
    collector: Any = getattr(sys.modules.get(_OUTPUT_CAPTURING[0]), "_active_collector", None)
    context_variable: Any = getattr(collector, "context_var", None)
    return variable is not None and context_variable is variable and not variable.get(None)


_OUTPUT_CAPTURING = ("transformers.utils.output_capturing", "output_capturing_hook")
