"""Copies of arguments for a run that is not the user's own, and that nobody may notice.

What cannot be copied stands under a stand-in that raises when it is used; so does a method of an object that may do
more than change this object. Nothing of the user's runs before it is known to be harmless.
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
    """Copies of all that arguments reach."""

    def __init__(self, tensor: Callable[[Tensor], Tensor], watched: bool = False) -> None:
        super().__init__(tensor, watched=watched, deep=True)

    def _made(self, value: Any) -> Any:
        if is_unusable(value):
            return value
        if not isinstance(value, (Tensor, nn.Module)) and not is_copied(value):
            return UnusableObject(_Keeper(), value, "an argument")
        return super()._made(value)

    def _object(self, value: Any) -> Any:
        made = super()._object(value)
        if made is not value:
            guard_methods(made, value)
        return made

    def _container(self, value: Any) -> Any:
        made = super()._container(value)
        if made is not value and is_mutable(value):
            guard_methods(made, value)
        return made


def guard_methods(made: Any, value: Any) -> None:
    """Have the methods of `made`, a copy of `value`, raise Untraceable that may do more than change it."""
    kind: Any = type(made)
    if not is_user_class(original_class(kind)):
        return
    harmful = harmful_methods(original_class(kind), classes_in(value))
    if harmful:
        object.__setattr__(made, "__class__", _guarded(kind, harmful, hasattr(made, "__dict__")))


class KeptArguments(Twins):
    """Copies of such copies, to be traced later: what could not be copied is the user's own again."""

    def _made(self, value: Any) -> Any:
        return real_object(value) if is_unusable(value) else super()._made(value)


class _Keeper:
    def used(self, text: str, kind: str) -> NoReturn:
        _refuse(because(forwards.USES_UNSEEN, name=text, kind=kind))


def _refuse(reason: Reason) -> NoReturn:
    """Raise Untraceable, and leave word with who listens: the user's code may catch it."""
    error, listener = Untraceable(reason, user_place()), active.listener
    if isinstance(listener, Values):
        listener.refused = listener.refused or error
    raise error


def forget_copies() -> None:
    """Let the classes that were derived for copies go."""
    _guarded.cache_clear()


@cache
def _guarded(cls: Any, harmful: tuple[str, ...], has_dict: bool) -> type:
    """A subclass whose harmful methods raise Untraceable."""
    names: dict[str, Any] = {n: _refusing(original_class(cls).__name__, n) for n in harmful}
    if not has_dict:
        names["__slots__"] = ()
    made: type = derived_class(cls, {**names, TWIN: original_class(cls)})
    return made


def _refusing(kind: str, name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        _refuse(because(forwards.CALLS_OBJECT, kind=kind, name=name))

    return refuse
