"""Forward hooks that a library leaves on a module for good, and that do something only while somebody asks for it.

transformers puts hooks on every attention module at the first call with `output_attentions=True`, and never takes them
away: they collect what modules return while such a call runs. At any other time nobody watches the module. Knows those
libraries by the names of their functions; imports none of them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from typing import Any


def someone_watches(hooks: Iterable[Any]) -> bool:
    """Whether any of a module's hooks does something at this very moment, as far as can be told."""
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
    """Whether a context variable is the one that those hooks look at, and asks for nothing at this very moment.

    transformers sets it to an empty dict while a model runs of which nothing is asked, and resets it then.
    """
    collector: Any = getattr(sys.modules.get(_OUTPUT_CAPTURING[0]), "_active_collector", None)
    held: Any = getattr(collector, "context_var", None)
    return variable is not None and held is variable and not variable.get(None)


_OUTPUT_CAPTURING = ("transformers.utils.output_capturing", "output_capturing_hook")
