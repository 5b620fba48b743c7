"""Maps a function over many files, in one process for each core. The results keep the order of the files.

The processes are forked, so that they start with the rules that are already imported. If forking is not possible, or if
there are only a few files, the work is done in this process.
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

_FEW = 48  # for fewer files the start of processes takes longer than the work
_CHUNK = 8  # files that a process receives at once

_shared: tuple[Callable[[Any], Any], Sequence[Any]] | None = None  # forked processes inherit this


def map_in_processes(
    work: Callable[[_Item], _Result], items: Sequence[_Item], begin: Callable[[int], None] | None = None
) -> Iterator[_Result]:
    """Yield `work(item)` for each of `items`, in order.

    Args:
        work: The function. Its results must be picklable, and it must not raise.
        items: The arguments of `work`.
        begin: Called once with the number of processes, before the fork. The processes share what it creates.
    """
    global _shared
    done, processes = 0, _process_count(len(items))
    if processes > 1:
        _shared = work, items
        if begin is not None:
            begin(processes)
        try:
            for result in _map_forked(processes, len(items)):
                yield result
                done += 1
        except (BrokenProcessPool, _NoProcess):
            pass  # no process could start, or one was killed: this process does the rest
        finally:
            _shared = None
    with _garbage_collection_off():
        yield from map(work, items[done:])


@contextmanager
def _garbage_collection_off() -> Iterator[None]:
    """Switch garbage collection off: the search for reference cycles in syntax trees takes a third of the time.

    Few syntax trees are part of a cycle, so almost all of them are freed without the collector.
    """
    before = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # this moves all objects to the oldest generation, which is collected least often
        atexit.unregister(gc.freeze)
        atexit.register(gc.freeze)  # the collection at exit skips frozen objects, too
        if before:
            gc.enable()


class _NoProcess(Exception):
    """The system cannot start a process, or has no pipe for it."""


def _map_forked(processes: int, count: int) -> Iterator[Any]:
    """Yield the results of forked processes. The processes end when this process ends, for whatever reason."""
    try:
        read_end, write_end = os.pipe()
    except OSError as error:
        raise _NoProcess from error
    try:
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(processes, context, _begin, (read_end, write_end)) as pool:
            with _interrupts_blocked():
                try:
                    results = pool.map(_work, range(count), chunksize=_CHUNK)
                except OSError as error:
                    raise _NoProcess from error
            yield from results
    finally:
        os.close(write_end)
        os.close(read_end)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT during the fork. Ctrl-C reaches every process, and a new one would print a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _process_count(count: int) -> int:
    if sys.platform != "linux" or count < _FEW:  # on other systems, a fork is unsafe or not possible
        return 1
    return min(len(os.sched_getaffinity(0)), count // _FEW + 1)


def _begin(read_end: int, write_end: int) -> None:
    """Set up a forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process stops its children itself
    os.close(write_end)  # only the parent holds this end now, so the pipe closes when the parent ends
    threading.Thread(target=_exit_with_parent, args=(read_end,), daemon=True).start()
    gc.freeze()
    gc.disable()


def _exit_with_parent(read_end: int) -> None:
    """End this process when the parent ends. A parent that is killed cannot stop its children."""
    os.read(read_end, 1)
    os._exit(1)


def _work(index: int) -> Any:
    assert _shared is not None, "set before the process was forked"
    work, items = _shared
    return work(items[index])
