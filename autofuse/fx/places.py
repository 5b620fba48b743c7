"""Where in the user's code something happens."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import FrameType

import torch

_OURS = tuple(os.path.dirname(os.path.abspath(f)) + os.sep for f in (__file__, torch.__file__))
_MACHINERY = ("<frozen", "<string>", "<autofuse")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file."""

    file: str
    line: int


def user_place() -> Place | None:
    """The innermost line on the stack that belongs neither to torch nor to autofuse."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OURS) and not file.startswith(_MACHINERY):
            return Place(file, frame.f_lineno)
        frame = frame.f_back
    return None
