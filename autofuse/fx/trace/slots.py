"""The slots of an object: attributes that lie in no dict."""

from __future__ import annotations

import types
from typing import Any


def slots(value: Any) -> list[str]:
    """The names of the slots of an object."""
    if isinstance(value, (type, types.FunctionType)):
        return []
    own = [c for c in type(value).__mro__ if "__slots__" in vars(c)]
    return [n for c in own for n, m in vars(c).items() if type(m) is types.MemberDescriptorType and n[:2] != "__"]
