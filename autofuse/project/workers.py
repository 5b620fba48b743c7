"""The same work on many files, by as many processes as there are cores; results come in the order of the files.

Processes are forked, so that they have the rules already; where that is not possible, and for a few files, the work is
done here. Knows processes; knows nothing of the work.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_FEW = 48  # files that are read sooner than processes are started
_AT_ONCE = 8  # files that a process is handed together

_shared: tuple[Callable[[Any], Any], Sequence[Any]] | None = None  # what forked processes inherit


def each(
    work: Callable[[_Item], _Result], items: Sequence[_Item], begin: Callable[[int], None] | None = None
) -> Iterator[_Result]:
    """`work` done on each item. What it returns must be picklable, and it may not raise.

    `begin` is called with the number of processes, before they are forked: they share what it makes.
    """
    global _shared
    done, processes = 0, _processes(len(items))
    if processes > 1:
        _shared = work, items
        if begin is not None:
            begin(processes)
        try:
            for result in _forked(processes, len(items)):
                yield result
                done += 1
        except (BrokenProcessPool, _NoProcess):  # none to be had, or one that was killed: the rest is done here
            pass
        finally:
            _shared = None
    with _without_cycles():
        yield from map(work, items[done:])


@contextmanager
def _without_cycles() -> Iterator[None]:
    """What is read of a file is let go with it; looking for cycles in syntax trees takes a third of the time."""
    before = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # all is old now, so that what comes next looks through none of it
        atexit.unregister(gc.freeze)
        atexit.register(gc.freeze)  # neither does the end of the process
        if before:
            gc.enable()


class _NoProcess(Exception):
    """The system gives no processes, or not what they need."""


def _forked(processes: int, count: int) -> Iterator[Any]:
    """The results of forked processes, which end when this one does, however it ends."""
    try:
        ours, theirs = os.pipe()
    except OSError as error:
        raise _NoProcess from error
    try:
        forked = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(processes, forked, _begin, (ours, theirs)) as pool:
            with _undisturbed():
                try:
                    results = pool.map(_work, range(count), chunksize=_AT_ONCE)
                except OSError as error:
                    raise _NoProcess from error
            yield from results
    finally:
        os.close(theirs)
        os.close(ours)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C goes to every process of a terminal; one that was just forked would answer it with a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _processes(count: int) -> int:
    if sys.platform != "linux" or count < _FEW:  # elsewhere forking is unsafe or unknown
        return 1
    return min(len(os.sched_getaffinity(0)), count // _FEW + 1)


def _begin(ours: int, theirs: int) -> None:
    """What a forked process does first. It collects no cycles, as `_without_cycles` says."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process tells the others to stop
    os.close(theirs)  # then the first process alone holds this end of the pipe, and it closes with that process
    threading.Thread(target=_end_with, args=(ours,), daemon=True).start()
    gc.freeze()
    gc.disable()


def _end_with(ours: int) -> None:
    """Ends this process when the first one is gone: killed, it could tell nobody, and this one would wait for ever."""
    os.read(ours, 1)
    os._exit(1)


def _work(index: int) -> Any:
    assert _shared is not None, "set before the process was forked"
    work, items = _shared
    return work(items[index])
