"""Rows in several processes: those that are not timed, and rows that only fill the compilers' caches.

A first run mostly compiles, on one core. Processes that share a GPU disturb each other's times, so timed rows run one
after another, and figures and measured decisions of a run that fills caches are discarded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

UNTIMED = ("correctness", "devices", "models")
_ROOT = Path(__file__).parents[2]


def run_untimed(arguments: Sequence[str], sections: Sequence[str], workers: int) -> None:
    """Runs the rows of the sections that are not timed in `workers` processes, which store them in the same folder."""
    if wanted := [section for section in sections if section in UNTIMED]:
        _run([*arguments, "--section", *wanted], workers, {})


def fill_caches(arguments: Sequence[str], workers: int) -> None:
    """Runs all requested rows in `workers` processes and discards what they measure."""
    with tempfile.TemporaryDirectory() as folder:
        decisions = {"AUTOFUSE_CACHE_DIR": str(Path(folder, "cache"))}
        _run([*arguments, "--out", folder], workers, decisions)


def _run(arguments: Sequence[str], workers: int, variables: dict[str, str]) -> None:
    """Processes that each take an equal share of the rows. A row that fails is a row, so exit codes do not matter."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu", *arguments]
    environment = {**os.environ, **variables}
    children = [
        subprocess.Popen([*command, "--share", str(i), str(workers)], cwd=_ROOT, env=environment)
        for i in range(workers)
    ]
    for child in children:
        child.wait()
