"""Runs each row in its own process, with a time limit, so that a crash is reported in the row.

This file starts processes, and does not depend on what is measured.
"""

from __future__ import annotations

import multiprocessing
import traceback
import warnings
from multiprocessing.connection import Connection

import torch

from tools.models.measured import Measured, measure
from tools.models.row import Row

SECONDS = 300
# A fork need not import the libraries again. Nothing has computed yet, so there are no threads that it would lose.
_FORK = multiprocessing.get_context("fork")


def run_row(row: Row, seconds: int = SECONDS) -> Measured:
    """Measure `row` in a process. If the process fails, the result says why."""
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_work, args=(row, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            return Measured(row.name, row.package, failure=f"took more than {seconds} s")
        return receiver.recv()
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
        result.send(measure(row))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('site-packages/')[2]}:{place.lineno}"
        result.send(Measured(row.name, row.package, row.note, f"{type(error).__name__}: {error} ({where})"))
