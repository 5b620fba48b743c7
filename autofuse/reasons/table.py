"""All reasons by the name of their code. A group is a module that defines codes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from autofuse.reasons import code_that_runs, forwards, libraries, matches, outcomes, tensors, writing
from autofuse.reasons.reason import Code

GROUPS: tuple[ModuleType, ...] = (matches, code_that_runs, writing, tensors, libraries, forwards, outcomes)


def codes_of(group: ModuleType) -> tuple[Code, ...]:
    """The codes of one group, in the order of their definition."""
    return tuple(code for code in vars(group).values() if isinstance(code, Code))


def _collect_codes() -> Mapping[str, Code]:
    codes: dict[str, Code] = {}
    for code in (c for group in GROUPS for c in codes_of(group)):
        if code.name in codes:
            raise ValueError(f"Two reasons have the name {code.name}; rename one of them.")
        codes[code.name] = code
    return MappingProxyType(codes)


TABLE = _collect_codes()
