"""Where code asks for the type of a value and does more with it than read its attributes.

In a trace that type is of a stand-in: a class derived from the user's for a module or an object, another class for a
tensor. An attribute of it is the same (`type(self).scale`), `self.__class__` is answered as the user's own class, and
isinstance holds; but `type(child) is Attention`, `TABLE[type(x)]` and `type(self)(...)` do something else, and
`Base.__subclasses__()` has one more.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator, Sequence

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
_ASK_NOTHING = frozenset({"PRECALL", "CACHE", "RESUME", "EXTENDED_ARG", "NOP", "PUSH_NULL", "KW_NAMES"})
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_DIFFER = frozenset({"__mro__", "mro", "__bases__", "__base__", "__dict__", "__subclasses__"})  # in a derived class
_TAKE_CLASSES = ("isinstance", "issubclass")
_HELPERS = 3  # how deep functions that a forward names are looked into


# Functions of libraries, by module and name, that come to the same for a stand-in: this one says in which order to ask
# whether a value is a tensor of torch, of numpy, of others.
_SAME_FOR_ALL = frozenset({("transformers.utils.generic", "infer_framework_from_repr")})


def uses_type_of_values(code: types.CodeType, module: str = "") -> int | None:
    """The first line in which `code` uses the type of a value itself, not an attribute of it; None where it does not.

    Code within it, such as a comprehension or a lambda, is looked at with it. module: the name of the one it is from.
    """
    return None if (module, code.co_name) in _SAME_FOR_ALL else min(_lines(code), default=None)


def _lines(code: types.CodeType) -> Iterator[int]:
    steps = [i for i in dis.get_instructions(code) if i.opname not in _ASK_NOTHING]
    for place, step in enumerate(steps):
        asks = step.opname in _LOADS and step.argval == "type" and not _is_harmless(steps, place)
        if asks or step.opname in _ATTRIBUTES and step.argval == "__subclasses__":
            yield _start(step)[0] or code.co_firstlineno
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _lines(inner)


def _is_harmless(steps: Sequence[dis.Instruction], place: int) -> bool:
    """Whether of what `type`, loaded at `place`, gives for a value no more than an attribute is read."""
    call = _call_around(steps, place)
    if call is None:
        return False
    function, arguments = steps[call], steps[call].arg
    if _start(function) != _start(steps[place]):  # handed to a function: isinstance(x, type)
        return any(
            s.opname in _LOADS and s.argval in _TAKE_CLASSES and _start(s) == _start(function) for s in steps[:place]
        )
    if function.opname == "CALL" and arguments == 3:
        return True  # it makes a class
    after = steps[call + 1]  # a call ends no function
    return function.opname == "CALL" and after.opname in _ATTRIBUTES and after.argval not in _DIFFER


def _call_around(steps: Sequence[dis.Instruction], place: int) -> int | None:
    """The first call whose text holds that of the instruction at `place`."""
    start = _start(steps[place])
    if None in start:  # Python was told to keep no columns
        return None
    for further in range(place + 1, len(steps)):
        step = steps[further]
        if step.opname.startswith("CALL") and None not in _start(step):
            if _start(step) <= start and start < _end(step):
                return further
    return None


def _start(step: dis.Instruction) -> tuple[int | None, int | None]:
    at = step.positions
    return (at.lineno, at.col_offset) if at is not None else (None, None)


def _end(step: dis.Instruction) -> tuple[int | None, int | None]:
    at = step.positions
    return (at.end_lineno, at.end_col_offset) if at is not None else (None, None)
