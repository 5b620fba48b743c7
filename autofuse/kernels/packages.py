"""What computes operations and where it comes from: found without importing it, loaded once, guarded.

Knows how a package is found and got; must not know what is done with it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType


@dataclass(frozen=True)
class Package:
    """Something that has to be there for a provider to run.

    `missing` says why it cannot be used on this machine, as a sentence, "" where it can; asking imports nothing that is
    not there. `install` says how it is got.
    """

    name: str
    missing: Callable[[], str]
    install: str


class Unavailable(Exception):
    """A package, or a part of it, that was to be used and cannot be; the message is a sentence."""


@cache
def loaded(module: str) -> ModuleType:
    """A module that may be absent or broken. Raises Unavailable, whatever its import raises."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise Unavailable(f"{module} cannot be imported: {type(error).__name__}: {error}") from error


def _nothing_missing() -> str:
    return ""


@cache
def _no_triton() -> str:
    return "" if importlib.util.find_spec("triton") else "Triton is not installed."


@cache
def _no_compiler() -> str:
    """Inductor takes $CXX, else what is called g++ or clang++."""
    named = os.environ.get("CXX", "")
    if any(shutil.which(command) for command in (named, "g++", "clang++") if command):
        return ""
    return "There is no C++ compiler: neither $CXX, g++ nor clang++ was found."


TORCH = Package("torch", _nothing_missing, "It is there.")
TRITON = Package("triton", _no_triton, "pip install triton (it comes with torch's builds for CUDA).")
COMPILER = Package("compiled", _no_compiler, "Install a C++ compiler, g++ or clang++.")
