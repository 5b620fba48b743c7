"""Stands in for libraries that are not installed, so that a file which merely mentions them can be imported.

What is taken from such a library is a class that accepts everything and gives itself; a decorator gives what it
decorates. Code that really needs one fails later, and is counted as not run.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_REAL = ("torch", "numpy", "tools", "autofuse")  # what is missing in these is missing


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
    """A class that stands for whatever a missing library has."""

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
    """Asked last: finds whatever nobody else does, unless it belongs to a library that is there."""

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


def stand_in() -> None:
    """From here on, a library that is not installed can be imported."""
    sys.meta_path.append(_Finder())
