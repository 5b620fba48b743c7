"""Ctrl-C in a run over files: it ends the run, wherever it comes, and prints nothing.

Python raises KeyboardInterrupt between any two instructions. Where that is the end of an object, it is printed with a
traceback and forgotten, and the run would go on; so it is remembered here, and asked for after each file.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """In the block, Ctrl-C raises KeyboardInterrupt. What the block is given raises it if one was lost meanwhile."""
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def raise_if_lost() -> None:
        if came:
            raise KeyboardInterrupt

    if not _ours_to_handle():
        yield raise_if_lost
        return
    unraisable = sys.unraisablehook
    sys.unraisablehook = _without_interruptions(unraisable)
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield raise_if_lost
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = unraisable


def uninterrupted_end() -> None:
    """For a process that has done its work: Ctrl-C while Python takes itself apart says nothing any more."""
    if _ours_to_handle():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _ours_to_handle() -> bool:
    """Whether nobody else wants the signal; only the main thread may ask for it."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _without_interruptions(told: Callable[[Any], None]) -> Callable[[Any], None]:
    def quiet(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            told(unraisable)

    return quiet
