"""A class that is derived from the user's without a word to the user's code.

`__init_subclass__` and the metaclass's `__new__` do not run: a class that registers those derived from it, wraps their
forwards, or forbids them, is as it was. Only `__subclasses__` knows. In all else it is an ordinary subclass.
"""

from __future__ import annotations

from typing import Any

TWIN = "_autofuse_twin"  # under which a derived class has the user's


class _Unheard:
    """Stands before the user's classes, where Python looks for what is to be told."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        pass


def derived_class(cls: type, names: dict[str, Any]) -> Any:
    """A class derived from `cls` with these names in it, and under TWIN `cls` itself.

    Raises TypeError where Python derives no class from `cls`.
    """
    described = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__, TWIN: cls}
    bases = (cls,) if issubclass(cls, _Unheard) else (_Unheard, cls)
    return type.__new__(type(cls), cls.__name__, bases, {**described, **names})
