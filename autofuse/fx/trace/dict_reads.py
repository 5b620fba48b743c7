"""Whether code goes through all the attributes of an object: `for name in vars(self)`. Knows Python's code objects."""

from __future__ import annotations

import dis
import types
from functools import cache
from typing import Any

_ALL = frozenset(
    {"items", "keys", "values", "copy", "len", "sorted", "list", "tuple", "set", "dict", "sum", "any", "all"}
)


@cache
def goes_through(code: types.CodeType) -> bool:
    """Whether a `__dict__`, or what `vars` gives, may be used otherwise than by names that are written out."""
    steps = [s for s in dis.get_instructions(code) if s.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL", "NOP")]
    uses = [_use(steps, place) for place, step in enumerate(steps) if step.argval in ("vars", "__dict__")]
    kept = any(step.opname == "STORE_FAST" for step in uses if step is not None)
    named = not _ALL.isdisjoint(code.co_names) or any(s.opname == "GET_ITER" for s in steps)
    return any(step is None for step in uses) or kept and named


def _use(steps: list[Any], place: int) -> Any:
    """The step that looks a name up, or keeps the dict; None for any other."""
    if steps[place].argval == "vars":
        place = next((n for n in range(place, len(steps)) if steps[n].opname.startswith("CALL")), len(steps))
    after = steps[place + 1 : place + 3]
    if not after:
        return None
    first, second = after[0], after[-1]
    if first.opname in ("CONTAINS_OP", "STORE_FAST"):
        return first
    if first.opname in ("LOAD_CONST", "LOAD_FAST") and second.opname in ("BINARY_SUBSCR", "STORE_SUBSCR"):
        return first
    return first if first.opname in ("LOAD_METHOD", "LOAD_ATTR") and "get" in str(first.argval) else None
