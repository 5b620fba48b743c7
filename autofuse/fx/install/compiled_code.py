"""What Dynamo compiled of functions that met instances of a class.

Dynamo guards the class of each module that it meets, and not the functions in the class: one that is replaced there
goes on in what is compiled. This finds such functions by their guards and has them compiled anew when they are called.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from autofuse.torch_private import COMPILER, on_demand

_CLASS = re.compile(r"TYPE_MATCH.*?, (\d+)\)")

_classes: WeakKeyDictionary[Any, frozenset[int]] = WeakKeyDictionary()  # guards -> the ids of the classes in them


def forget_compiled(cls: type) -> None:
    """Drop what is compiled of each function that met an instance of `cls` or of a class derived from it."""
    if COMPILER not in sys.modules:  # nothing was compiled, and it takes long to import
        return
    ids = {id(kind) for kind in _family(cls)}
    for reference in list(on_demand.compiled_codes.seen):
        code = reference()
        if code is not None and any(ids & _guarded(form) for form in on_demand.compiled_forms(code)):
            on_demand.reset_code(code)


@contextmanager
def compiled_for_a_trial() -> Iterator[None]:
    """Drop what was compiled in this block: forms that a trial leaves count towards the limit of recompilations."""
    before = _forms()
    try:
        yield
    finally:
        for code, count in _forms().items():
            if count > before.get(code, 0):
                on_demand.reset_code(code)


def _forms() -> dict[Any, int]:
    """The functions that Dynamo compiled, and in how many forms each."""
    if COMPILER not in sys.modules:
        return {}
    codes = [code for reference in list(on_demand.compiled_codes.seen) if (code := reference()) is not None]
    return {code: len(list(on_demand.compiled_forms(code))) for code in codes}


def _family(cls: type) -> set[type]:
    return {cls}.union(*map(_family, type.__subclasses__(cls)))


def _guarded(form: Any) -> frozenset[int]:
    guards = form.guard_manager
    if guards not in _classes:
        _classes[guards] = frozenset(map(int, _CLASS.findall(str(guards))))
    return _classes[guards]
