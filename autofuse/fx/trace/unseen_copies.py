"""Copies arguments for a run of autofuse's own, so that the user's objects do not change.

A value that cannot be copied is replaced by a stand-in that raises when it is used. A method that may change more than
its own object is replaced in the same way. No user code runs before it is known to be harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from torch import Tensor, nn

from autofuse.fx.trace.code_effects import classes_in, harmful_methods, is_copied, is_user_class
from autofuse.fx.trace.contents import is_mutable
from autofuse.fx.trace.derived_class import TWIN, derived_class
from autofuse.fx.trace.foreign_objects import UnusableObject, is_unusable, real_object
from autofuse.fx.trace.source_lines import user_place
from autofuse.fx.trace.twin import Twins, active, original_class
from autofuse.fx.trace.values import Untraceable, Values
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because


class UnseenCopies(Twins):
    """Makes copies of everything that the arguments refer to."""

    def __init__(self, tensor: Callable[[Tensor], Tensor], watched: bool = False) -> None:
        super().__init__(tensor, watched=watched, deep=True)

    def _make(self, value: Any) -> Any:
        if is_unusable(value):
            return value
        if not isinstance(value, (Tensor, nn.Module)) and not is_copied(value):
            return UnusableObject(_Keeper(), value, "an argument")
        return super()._make(value)

    def _object(self, value: Any) -> Any:
        copy = super()._object(value)
        if copy is not value:
            guard_methods(copy, value)
        return copy

    def _container(self, value: Any) -> Any:
        copy = super()._container(value)
        if copy is not value and is_mutable(value):
            guard_methods(copy, value)
        return copy


def guard_methods(copy: Any, value: Any) -> None:
    """Replaces those methods of `copy`, a copy of `value`, that may change more than it. They raise Untraceable."""
    kind: Any = type(copy)
    if not is_user_class(original_class(kind)):
        return
    harmful = harmful_methods(original_class(kind), classes_in(value))
    if harmful:
        # The user's class may override __setattr__, and its code must not run.
        object.__setattr__(copy, "__class__", _guarded_class(kind, harmful, hasattr(copy, "__dict__")))


class SavedArguments(Twins):
    """Copies such copies for a later trace. Values that could not be copied are the user's own objects again."""

    def _make(self, value: Any) -> Any:
        return real_object(value) if is_unusable(value) else super()._make(value)


class _Keeper:
    def refuse_use(self, text: str, kind: str) -> NoReturn:
        _refuse(because(forwards.USES_UNSEEN, name=text, kind=kind))


def _refuse(reason: Reason) -> NoReturn:
    """Raises Untraceable, and records it with the listener, because the user's code may catch it."""
    error, listener = Untraceable(reason, user_place()), active.listener
    if isinstance(listener, Values):
        listener.refused = listener.refused or error
    raise error


def forget_copies() -> None:
    """Drops the classes that were derived for copies."""
    _guarded_class.cache_clear()


@cache
def _guarded_class(cls: Any, harmful: tuple[str, ...], has_dict: bool) -> type:
    """Returns a subclass whose harmful methods raise Untraceable."""
    names: dict[str, Any] = {n: _refusing_method(original_class(cls).__name__, n) for n in harmful}
    if not has_dict:  # Python assigns `__class__` only between classes of one layout
        names["__slots__"] = ()
    copy: type = derived_class(cls, {**names, TWIN: original_class(cls)})
    return copy


def _refusing_method(kind: str, name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        _refuse(because(forwards.CALLS_OBJECT, kind=kind, name=name))

    return refuse
