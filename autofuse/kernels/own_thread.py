"""Runs our work in a thread of its own, without the modes of the caller's thread, and shows progress if it takes long.

Python's profiler and tracer, torch's function modes, grad mode and autocast belong to a thread. A compiler that runs
while the user's code is watched would be called back at each of its calls, and take three times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from autofuse.display.progress import busy_with

_T = TypeVar("_T")
_STACK = 64 * 2**20  # bytes; sympy recurses deeply, and some systems give threads a smaller stack than the main thread
_LOCK = threading.Lock()


def run_in_own_thread(work: Callable[[], _T], what: str) -> _T:
    """Runs `work` in a thread and returns its result, or raises its exception.

    `what` is shown on a terminal if it takes longer than a second.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = _start(run)
    with busy_with(what):
        thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _start(run: Callable[[], Any]) -> threading.Thread:
    """Starts a daemon thread, so that an interrupted program ends. The stack size is a setting of the whole process."""
    thread = threading.Thread(target=run, name="autofuse", daemon=True)
    with _LOCK:
        before = threading.stack_size(_STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread
