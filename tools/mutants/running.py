"""Runs the tests of each mutant in a copy of the tree, and never in the tree itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

from tools.mutants.areas import AREAS, ROOT
from tools.mutants.choosing import Mutant

KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"
_NO_TESTS = 5  # pytest's exit status if it collected no test


class FailingTestsError(Exception):
    """A test fails without any mutant, so its failures prove nothing."""


@dataclass(frozen=True)
class Outcome:
    """The result for one mutant. `by` is the test that failed, or ""."""

    mutant: Mutant
    status: str
    seconds: float
    by: str


def outcomes(mutants: list[Mutant], jobs: int, limit: float, report: Callable[[Outcome], None]) -> Iterator[Outcome]:
    """Yield the outcome of each mutant, in the order of `mutants`.

    Args:
        mutants: the mutants.
        jobs: the number of copies of the tree in which tests run at the same time.
        limit: seconds for the tests of a mutant.
        report: is called with each outcome as soon as it is known.
    """
    with TemporaryDirectory(prefix="autofuse-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies: Queue[Path] = Queue()
        for number in range(jobs):
            copies.put(_copy(Path(folder) / str(number)))
        passing = _PassingTests()

        def run(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                outcome = _outcome(mutant, copy, limit, passing)
            finally:
                copies.put(copy)
            report(outcome)
            return outcome

        yield from pool.map(run, mutants)


def _copy(folder: Path) -> Path:
    """Copy the files of this tree that git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "autofuse" / "rules").symlink_to(folder / "rules")  # the installed package has the rules there
    return folder


class _PassingTests:
    """The tests that failed for a mutant and pass without one. A test that always fails has noticed nothing."""

    def __init__(self) -> None:
        self._passed = set[str]()

    def check(self, copy: Path, test: str) -> None:
        if test not in self._passed and _run_tests(copy, [test], None)[0] != 0:
            raise FailingTestsError(f"{test} also fails without a mutant. Repair it first.")
        self._passed.add(test)


def _outcome(mutant: Mutant, copy: Path, limit: float, passing: _PassingTests) -> Outcome:
    file = copy / mutant.file
    began = time.monotonic()
    file.write_text(mutant.changed)
    try:
        exit_status, by = _run_tests(copy, AREAS[mutant.area].tests_of(mutant.file), limit)
    finally:
        file.write_text(mutant.text)
    if by:
        passing.check(copy, by)
    status = TIMEOUT if exit_status is None else SURVIVED if exit_status in (0, _NO_TESTS) else KILLED
    return Outcome(mutant, status, round(time.monotonic() - began, 1), by)


def _run_tests(copy: Path, tests: list[str], limit: float | None) -> tuple[int | None, str]:
    """Run tests. Return pytest's exit status (None after a timeout), and the first test that failed or ""."""
    quiet = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-m", "not slow and not night"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *quiet, *tests],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # also ends processes that the tests have started
            return None, ""
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return process.returncode, failed[0].split(" ", 1)[1].split(" - ")[0] if failed else ""
