"""Replaces libraries that are not installed by stubs, so that a file that only mentions them can be imported.

Every attribute of a stub is a class that accepts all arguments, and every decorator returns the decorated object. Code
that really needs the library fails later, and counts as not run.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_REAL = ("torch", "numpy", "tools", "autofuse")  # never replaced by stubs


class _Kind(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is Anything and len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return super().__call__(*args, **kwargs)

    def __getitem__(cls, item: object) -> Any:
        return cls


class Anything(metaclass=_Kind):
    """A class that replaces every attribute of a missing library."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else Anything()


class _Absent(ModuleType):
    __version__ = "0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last finder: it finds every module that the others do not, except in installed libraries."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        there = top in _REAL or name != top and not isinstance(sys.modules.get(top), _Absent)
        return None if there else importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install_stubs() -> None:
    """Make imports of missing libraries return stubs from here on."""
    sys.meta_path.append(_Finder())
