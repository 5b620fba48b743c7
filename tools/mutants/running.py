"""Runs the tests of each mutant in a copy of the tree: never in the tree itself."""

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
_NO_TESTS = 5  # pytest's exit status where nothing was collected


class Broken(Exception):
    """The tests fail without any mutant, so they tell nothing."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant; `by` is the test that failed, if one did."""

    mutant: Mutant
    status: str
    seconds: float
    by: str


def outcomes(mutants: list[Mutant], jobs: int, limit: float, told: Callable[[Outcome], None]) -> Iterator[Outcome]:
    """The outcome of each, in the order of `mutants`; `told` hears of each as it comes."""
    with TemporaryDirectory(prefix="autofuse-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies: Queue[Path] = Queue()
        for number in range(jobs):
            copies.put(_copy(Path(folder) / str(number)))
        sound = _Sound()

        def run(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                outcome = _outcome(mutant, copy, limit, sound)
            finally:
                copies.put(copy)
            told(outcome)
            return outcome

        yield from pool.map(run, mutants)


def _copy(folder: Path) -> Path:
    """What git has, or would have, of this tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "autofuse" / "rules").symlink_to(folder / "rules")  # installed, they lie there
    return folder


class _Sound:
    """The tests that noticed a mutant, and pass without any: one that fails anyway has noticed nothing."""

    def __init__(self) -> None:
        self._passed = set[str]()

    def check(self, copy: Path, test: str) -> None:
        if test not in self._passed and _tested(copy, [test], None)[0] != 0:
            raise Broken(f"{test} fails without any mutant, too: mend it first.")
        self._passed.add(test)


def _outcome(mutant: Mutant, copy: Path, limit: float, sound: _Sound) -> Outcome:
    file = copy / mutant.file
    began = time.monotonic()
    file.write_text(mutant.changed)
    try:
        status, by = _tested(copy, AREAS[mutant.area].tests_of(mutant.file), limit)
    finally:
        file.write_text(mutant.text)
    if by:
        sound.check(copy, by)
    told = TIMEOUT if status is None else SURVIVED if status in (0, _NO_TESTS) else KILLED
    return Outcome(mutant, told, round(time.monotonic() - began, 1), by)


def _tested(copy: Path, tests: list[str], limit: float | None) -> tuple[int | None, str]:
    """pytest's exit status, None where it took too long, and the first test that failed."""
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
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # whatever the tests have started, too
            return None, ""
    failed = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return process.returncode, failed[0].split(" ", 1)[1].split(" - ")[0] if failed else ""
