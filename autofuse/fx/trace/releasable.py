"""Decides which objects a guard may hold by a weak reference only.

A guard must not keep an object alive that the program has dropped: the program's own weak references and finalizers
would notice. Classes, functions and modules live as long as the program. Values that are compared by value are copies.
"""

from __future__ import annotations

import enum
import types
from typing import Any

from autofuse.fx.trace.effects import belongs_to_user

_LASTING = (type, types.ModuleType, enum.Enum)


def may_be_released(value: Any) -> bool:
    """Whether a value is an object of a user's class that can be referred to weakly."""
    cls = type(value)
    return bool(cls.__weakrefoffset__) and not isinstance(value, _LASTING) and belongs_to_user(cls)
