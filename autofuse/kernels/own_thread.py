"""Runs our work in threads of its own, without the modes of the caller's thread, and shows progress if it takes long.

Python's profiler and tracer, torch's function modes, grad mode and autocast belong to a thread. A compiler that runs
while the user's code is watched would be called back at each of its calls, and take three times as long.

The threads never end. Where torch is built for CUDA and finds no GPU, a thread that enters FakeTensorMode registers a
device guard that lives as long as the thread (torch 2.11, `_ensureCUDADeviceGuardSet`). After such a thread has ended,
the next FakeTensorMode in another thread ends the process. An idle thread takes the next work.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from autofuse.display.progress import busy_with

_T = TypeVar("_T")
_STACK = 64 * 2**20  # bytes; sympy recurses deeply, and some systems give threads a smaller stack than the main thread
_LOCK = threading.Lock()
_IDLE: list[_OwnThread] = []


def run_in_own_thread(work: Callable[[], _T], what: str) -> _T:
    """Runs `work` in a thread and returns its result, or raises its exception.

    `what` is shown on a terminal if it takes longer than a second.
    """
    results: list[_T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(contextvars.Context().run(work))
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    _idle_thread().start(run)
    with busy_with(what):
        done.wait()
    if errors:
        raise errors[0]
    return results[0]


class _OwnThread:
    """A daemon thread, so that an interrupted program ends. It runs one work after another."""

    def __init__(self) -> None:
        self._queue = SimpleQueue[Callable[[], Any]]()
        # The stack size is a setting of the whole process.
        with _LOCK:
            before = threading.stack_size(_STACK)
            try:
                threading.Thread(target=self._run_all, name="autofuse", daemon=True).start()
            finally:
                threading.stack_size(before)

    def start(self, run: Callable[[], None]) -> None:
        """Starts `run`, which must not raise. After it the thread is idle."""
        self._queue.put(run)

    def _run_all(self) -> None:
        while True:
            run = self._queue.get()
            run()
            del run  # an idle thread keeps nothing alive
            _IDLE.append(self)


def _idle_thread() -> _OwnThread:
    try:
        return _IDLE.pop()
    except IndexError:
        return _OwnThread()


# A child process has none of its parent's threads, and a lock may be held by one of them.
def _forget_threads() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    _IDLE.clear()


os.register_at_fork(after_in_child=_forget_threads)
