"""Finds code that asks for the type of a value and does more with it than read its attributes.

In a trace, this is the type of a stand-in: a subclass of the user's class for a module or an object, or another class
for a tensor. An attribute of that type is the same (`type(self).scale`), `self.__class__` returns the user's class, and
isinstance works. But `type(child) is Attention`, `TABLE[type(x)]` and `type(self)(...)` behave differently, and
`Base.__subclasses__()` has one more class.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator, Sequence

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
_IGNORED_OPCODES = frozenset({"PRECALL", "CACHE", "RESUME", "EXTENDED_ARG", "NOP", "PUSH_NULL", "KW_NAMES"})
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_DIFFERENT_IN_SUBCLASS = frozenset(
    {"__mro__", "mro", "__bases__", "__base__", "__dict__", "__subclasses__"}
)  # a derived class has other values
_CLASS_TESTS = ("isinstance", "issubclass")

# Functions of libraries, by module and name, that return the same for a stand-in. This one only orders the tests for
# tensors of torch, numpy and other frameworks.
_SAME_FOR_STAND_INS = frozenset({("transformers.utils.generic", "infer_framework_from_repr")})


def line_of_type_use(code: types.CodeType, module: str = "") -> int | None:
    """Returns the first line in which `code` uses the type of a value itself, not an attribute of it, or None.

    Args:
        code: The code of a function. Code inside it, such as a comprehension or a lambda, is included.
        module: The name of the module that defines the function.
    """
    return None if (module, code.co_name) in _SAME_FOR_STAND_INS else min(_lines_of_type_use(code), default=None)


def _lines_of_type_use(code: types.CodeType) -> Iterator[int]:
    steps = [i for i in dis.get_instructions(code) if i.opname not in _IGNORED_OPCODES]
    for place, step in enumerate(steps):
        asks = step.opname in _LOADS and step.argval == "type" and not _is_harmless(steps, place)
        if asks or step.opname in _ATTRIBUTES and step.argval == "__subclasses__":
            yield _start(step)[0] or code.co_firstlineno
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _lines_of_type_use(inner)


def _is_harmless(steps: Sequence[dis.Instruction], place: int) -> bool:
    """Returns whether only an attribute is read of the type that `type`, loaded at `place`, returns for a value."""
    call = _enclosing_call(steps, place)
    if call is None:
        return False
    function, arguments = steps[call], steps[call].arg
    if _start(function) != _start(steps[place]):  # passed to a function: isinstance(x, type)
        return any(
            s.opname in _LOADS and s.argval in _CLASS_TESTS and _start(s) == _start(function) for s in steps[:place]
        )
    if function.opname == "CALL" and arguments == 3:
        return True  # `type(name, bases, namespace)` makes a class
    after = steps[call + 1]  # exists, because a call is never a function's last instruction
    return function.opname == "CALL" and after.opname in _ATTRIBUTES and after.argval not in _DIFFERENT_IN_SUBCLASS


def _enclosing_call(steps: Sequence[dis.Instruction], place: int) -> int | None:
    """Returns the index of the first call whose source text includes the instruction at `place`, or None."""
    start = _start(steps[place])
    if None in start:  # Python runs without column information
        return None
    for index in range(place + 1, len(steps)):
        step = steps[index]
        if step.opname.startswith("CALL") and None not in _start(step):
            if _start(step) <= start and start < _end(step):
                return index
    return None


def _start(step: dis.Instruction) -> tuple[int | None, int | None]:
    at = step.positions
    return (at.lineno, at.col_offset) if at is not None else (None, None)


def _end(step: dis.Instruction) -> tuple[int | None, int | None]:
    at = step.positions
    return (at.end_lineno, at.end_col_offset) if at is not None else (None, None)
