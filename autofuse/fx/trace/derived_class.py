"""A class derived from a user's class without running the user's code.

`__init_subclass__` and the `__new__` of the metaclass do not run. So a class that registers its subclasses, wraps their
forwards or forbids them is unchanged. Only `__subclasses__` shows the new class. Otherwise it is an ordinary subclass.
"""

from __future__ import annotations

from typing import Any

TWIN = "_autofuse_twin"  # the attribute of a derived class that holds the user's class
NAMES = ("__name__", "__qualname__", "__module__")  # attributes that a program may assign


class _NoSubclassHook:
    """A base class before the user's classes, so that Python finds its `__init_subclass__` first."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        pass


def derived_class(cls: type, names: dict[str, Any]) -> Any:
    """A class derived from `cls`.

    Args:
        cls: the user's class. The new class holds it under `TWIN`.
        names: the attributes of the new class.

    Raises:
        TypeError: Python derives no class from `cls`.
    """
    namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__, TWIN: cls}
    bases = (cls,) if issubclass(cls, _NoSubclassHook) else (_NoSubclassHook, cls)
    return type.__new__(type(cls), cls.__name__, bases, {**namespace, **names})


def update_names(derived: type, cls: type) -> None:
    """Gives a class derived from `cls` the names that `cls` has now."""
    for name in NAMES:
        if getattr(derived, name) is not getattr(cls, name):
            type.__setattr__(derived, name, getattr(cls, name))
