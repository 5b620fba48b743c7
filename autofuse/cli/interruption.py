"""Ctrl-C in a run over files: it always ends the run, and prints nothing.

Python raises KeyboardInterrupt between any two instructions. If it is raised in a finalizer, Python prints a traceback
and drops the exception, and the run would continue. So the signal handler sets a flag, which the run checks after
each file.
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
def handle_interrupts() -> Iterator[Callable[[], None]]:
    """In the block, Ctrl-C raises KeyboardInterrupt.

    Yields:
        A function that raises KeyboardInterrupt if Python dropped one.
    """
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def raise_if_lost() -> None:
        if interrupted:
            raise KeyboardInterrupt

    if not _has_default_handler():
        yield raise_if_lost
        return
    # An interrupt in a destructor cannot be raised: Python prints it and continues. `raise_if_lost` raises it later.
    unraisable = sys.unraisablehook
    sys.unraisablehook = _hide_interrupts(unraisable)
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield raise_if_lost
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = unraisable


def ignore_interrupts() -> None:
    """Ignores Ctrl-C from here on, so that it prints nothing while Python shuts down."""
    if _has_default_handler():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _has_default_handler() -> bool:
    """Whether Python's default handler is active, in the main thread. Other threads may not set handlers."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _hide_interrupts(hook: Callable[[Any], None]) -> Callable[[Any], None]:
    def quiet(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)

    return quiet
