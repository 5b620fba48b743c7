"""Whether code iterates over the attributes of an object: `for name in vars(self)`.

This file knows Python's code objects.
"""

from __future__ import annotations

import dis
import types
from functools import cache
from typing import Any

_READS_ALL = frozenset(
    {"items", "keys", "values", "copy", "len", "sorted", "list", "tuple", "set", "dict", "sum", "any", "all"}
)


@cache
def iterates_over_dict(code: types.CodeType) -> bool:
    """Whether code may use `__dict__`, or the result of `vars`, for more than names that it contains as constants."""
    steps = [s for s in dis.get_instructions(code) if s.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL", "NOP")]
    uses = [_use(steps, index) for index, step in enumerate(steps) if step.argval in ("vars", "__dict__")]
    # The local may be used anywhere in the function, so all its names and loops count.
    in_local = any(step.opname == "STORE_FAST" for step in uses if step is not None)
    iterates = not _READS_ALL.isdisjoint(code.co_names) or any(s.opname == "GET_ITER" for s in steps)
    return any(step is None for step in uses) or in_local and iterates


def _use(steps: list[Any], index: int) -> Any:
    """The step that looks up a name in the dict or assigns the dict to a local; None for any other use."""
    if steps[index].argval == "vars":
        index = next((n for n in range(index, len(steps)) if steps[n].opname.startswith("CALL")), len(steps))
    after = steps[index + 1 : index + 3]
    if not after:
        return None
    first, second = after[0], after[-1]
    if first.opname in ("CONTAINS_OP", "STORE_FAST"):
        return first
    if first.opname in ("LOAD_CONST", "LOAD_FAST") and second.opname in ("BINARY_SUBSCR", "STORE_SUBSCR"):
        return first
    return first if first.opname in ("LOAD_METHOD", "LOAD_ATTR") and "get" in str(first.argval) else None
