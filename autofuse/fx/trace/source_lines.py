"""Finds the line of the user's code at which something happens."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import torch

_FX = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY_FOLDERS = (_FX + os.sep, os.path.dirname(os.path.abspath(torch.__file__)) + os.sep)
_GENERATED = ("<frozen", "<string>", "<autofuse")
_EINOPS = f"{os.sep}einops{os.sep}"  # its frames call methods of the user's tensors


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a source file."""

    file: str
    line: int


def is_user_file(file: str) -> bool:
    """Returns whether a file is user code: not a file of torch, einops or autofuse, and not generated."""
    return not file.startswith(_LIBRARY_FOLDERS + _GENERATED) and _EINOPS not in file


def user_place() -> SourceLine | None:
    """Returns the innermost line of user code on the stack, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            return SourceLine(file, frame.f_lineno)
        frame = frame.f_back
    return None


def definition_of(function: Callable[..., object]) -> SourceLine | None:
    """Returns the line at which a user's function is defined, or None for other functions."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (
        SourceLine(code.co_filename, code.co_firstlineno)
        if code is not None and is_user_file(code.co_filename)
        else None
    )


def is_called_by_einops() -> bool:
    """Returns whether einops called the caller.

    einops hashes shapes as keys of a cache. It works without the cache if a shape is unhashable.
    """
    return _EINOPS in sys._getframe(2).f_code.co_filename
