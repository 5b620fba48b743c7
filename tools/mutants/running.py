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
        _refuse_a_broken_tree(mutants, copies)

        def run(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                outcome = _outcome(mutant, copy, limit)
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


def _refuse_a_broken_tree(mutants: list[Mutant], copies: Queue[Path]) -> None:
    """Of each mutant's tests the first, its file's own, must pass as the tree is."""
    copy = copies.get()
    tests = dict.fromkeys(AREAS[m.area].tests_of(m.file)[0] for m in mutants)
    status, failed = _tested(copy, [*tests], None)
    if status not in (0, _NO_TESTS):
        raise Broken(f"{failed} fails without any mutant: mend it first.")
    copies.put(copy)


def _outcome(mutant: Mutant, copy: Path, limit: float) -> Outcome:
    file = copy / mutant.file
    began = time.monotonic()
    file.write_text(mutant.changed)
    try:
        status, by = _tested(copy, AREAS[mutant.area].tests_of(mutant.file), limit)
    finally:
        file.write_text(mutant.text)
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
