"""Each row in a process of its own, with a time limit: a model that crashes is a row that says so.

Knows processes; must not know what is measured.
"""

from __future__ import annotations

import multiprocessing
import traceback
import warnings
from multiprocessing.connection import Connection

import torch

from tools.models.measured import Measured, measured
from tools.models.row import Row

SECONDS = 300
# Libraries are imported once; nothing has computed yet, so no thread is lost.
_FORK = multiprocessing.get_context("fork")


def ran(row: Row, seconds: int = SECONDS) -> Measured:
    """What became of `row`; where its process does not end well, why."""
    ours, theirs = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_work, args=(row, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return Measured(row.name, row.package, failure=f"took more than {seconds} s")
        return ours.recv()
    except EOFError:
        process.join()
        return Measured(row.name, row.package, failure=f"its process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _work(row: Row, result: Connection) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        result.send(measured(row))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('site-packages/')[2]}:{place.lineno}"
        result.send(Measured(row.name, row.package, row.note, f"{type(error).__name__}: {error} ({where})"))
