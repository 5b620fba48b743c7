"""The same work on many files, by as many processes as there are cores; results come in the order of the files.

Processes are forked, so that they have the rules already; where that is not possible, and for a few files, the work is
done here. Knows processes; knows nothing of the work.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_FEW = 48  # files that are read sooner than processes are started
_AT_ONCE = 8  # files that a process is handed together

_shared: tuple[Callable[[Any], Any], Sequence[Any]] | None = None  # what forked processes inherit


def each(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """`work` done on each item. What it returns must be picklable, and it may not raise."""
    global _shared
    done, processes = 0, _processes(len(items))
    if processes > 1:
        _shared = work, items
        forked = multiprocessing.get_context("fork")
        try:
            with ProcessPoolExecutor(processes, forked, _begin) as pool:
                for result in pool.map(_work, range(len(items)), chunksize=_AT_ONCE):
                    yield result
                    done += 1
        except (BrokenProcessPool, OSError):  # no process to be had, or one that was killed: the rest is done here
            pass
        finally:
            _shared = None
    yield from map(work, items[done:])


def _processes(count: int) -> int:
    if sys.platform != "linux" or count < _FEW:  # elsewhere forking is unsafe or unknown
        return 1
    return min(len(os.sched_getaffinity(0)), count // _FEW + 1)


def _begin() -> None:
    """What is read of a file is let go with it; looking for cycles in syntax trees takes a third of the time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process tells the others to stop
    gc.freeze()
    gc.disable()


def _work(index: int) -> Any:
    assert _shared is not None, "set before the process was forked"
    work, items = _shared
    return work(items[index])
