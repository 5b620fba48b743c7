"""Where in the user's code something happens."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import torch

_FX = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = (_FX + os.sep, os.path.dirname(os.path.abspath(torch.__file__)) + os.sep)
_MACHINERY = ("<frozen", "<string>", "<autofuse")
_CALLED_FOR_TENSORS = f"{os.sep}einops{os.sep}"  # calls methods of the tensors that it is given


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a file."""

    file: str
    line: int


def is_users(file: str) -> bool:
    """Whether a file belongs neither to torch, einops nor autofuse, nor is made up."""
    return not file.startswith(_OURS + _MACHINERY) and _CALLED_FOR_TENSORS not in file


def user_place() -> SourceLine | None:
    """The innermost line on the stack that is the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return SourceLine(file, frame.f_lineno)
        frame = frame.f_back
    return None


def definition_of(function: Callable[..., object]) -> SourceLine | None:
    """Where a function of the user's is defined."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (
        SourceLine(code.co_filename, code.co_firstlineno) if code is not None and is_users(code.co_filename) else None
    )


def asked_by_einops() -> bool:
    """Whether the caller's caller is einops, which looks for shapes in a cache and does without where it cannot."""
    return _CALLED_FOR_TENSORS in sys._getframe(2).f_code.co_filename
