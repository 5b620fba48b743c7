"""Runs work of ours in a thread of its own, where nothing of the caller's thread is on, and says if it takes long.

Python's profiler and tracer, torch's function modes, grad mode and autocast belong to a thread. A compiler that runs
below a watch of the user's code is called back at each of its calls, and takes three times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from autofuse.display.progress import busy_with

_T = TypeVar("_T")
_STACK = 64 * 2**20  # bytes: sympy recurs deeply, and some systems give threads less than the main one
_LOCK = threading.Lock()


def in_own_thread(work: Callable[[], _T], what: str) -> _T:
    """What `work` returns; raises what it raises. `what` is shown on a terminal where it takes longer than a second."""
    done: list[_T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = _started(run)
    with busy_with(what):
        thread.join()
    if failed:
        raise failed[0]
    return done[0]


def _started(run: Callable[[], Any]) -> threading.Thread:
    """A daemon, so that an interrupted program ends. The size of a stack is a setting of the whole process."""
    thread = threading.Thread(target=run, name="autofuse", daemon=True)
    with _LOCK:
        before = threading.stack_size(_STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread
