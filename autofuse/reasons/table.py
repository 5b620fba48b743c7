"""Every reason there is, by the name of its code. Its groups are the files that the codes stand in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from autofuse.reasons import code_that_runs, forwards, libraries, matches, outcomes, tensors, writing
from autofuse.reasons.reason import Code

GROUPS: tuple[ModuleType, ...] = (matches, code_that_runs, writing, tensors, libraries, forwards, outcomes)


def codes_of(group: ModuleType) -> tuple[Code, ...]:
    """The codes of one group, in the order in which they are written."""
    return tuple(code for code in vars(group).values() if isinstance(code, Code))


def _table() -> Mapping[str, Code]:
    found: dict[str, Code] = {}
    for code in (c for group in GROUPS for c in codes_of(group)):
        if code.name in found:
            raise ValueError(f"Two reasons are called {code.name}; give one of them another name.")
        found[code.name] = code
    return MappingProxyType(found)


TABLE = _table()
