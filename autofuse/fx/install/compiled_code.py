"""Drops code that Dynamo compiled with instances of a class.

Dynamo guards the class of each module, but not the functions in the class. So compiled code would keep calling a
replaced forward. This module finds such code by its guards and resets it; Dynamo compiles it again at the next call.
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
    """Reset each compiled function whose guards mention `cls` or a subclass."""
    if COMPILER not in sys.modules:  # nothing was compiled, and the import is slow
        return
    ids = {id(kind) for kind in _with_subclasses(cls)}
    for reference in list(on_demand.compiled_codes.seen):
        code = reference()
        if code is not None and any(ids & _guarded_class_ids(form) for form in on_demand.compiled_forms(code)):
            on_demand.reset_code(code)


@contextmanager
def drop_trial_code() -> Iterator[None]:
    """Reset what is compiled in this block, because it would count towards Dynamo's recompilation limit."""
    before = _forms()
    try:
        yield
    finally:
        for code, count in _forms().items():
            if count > before.get(code, 0):
                on_demand.reset_code(code)


def _forms() -> dict[Any, int]:
    """The compiled functions, with the number of compiled versions of each."""
    if COMPILER not in sys.modules:
        return {}
    codes = [code for reference in list(on_demand.compiled_codes.seen) if (code := reference()) is not None]
    return {code: len(list(on_demand.compiled_forms(code))) for code in codes}


def _with_subclasses(cls: type) -> set[type]:
    return {cls}.union(*map(_with_subclasses, type.__subclasses__(cls)))


def _guarded_class_ids(form: Any) -> frozenset[int]:
    guards = form.guard_manager
    if guards not in _classes:
        _classes[guards] = frozenset(map(int, _CLASS.findall(str(guards))))
    return _classes[guards]
