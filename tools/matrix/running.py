"""Runs the fast tests and the training in the environment of a cell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tools.matrix.cells import Cell, Result
from tools.matrix.environments import REPOSITORY, NoEnvironment, environment

_LIMIT = 7200  # seconds for the tests of one cell; a busy machine needs more than one hour
_TESTS = ("-m", "fast")


def run_cell(cell: Cell, folder: Path, tests: tuple[str, ...] = _TESTS) -> Result:
    """Runs one cell and returns its result.

    Args:
        cell: The versions.
        folder: Where environments are kept.
        tests: Arguments of pytest.
    """
    try:
        python = environment(cell, folder)
    except NoEnvironment as reason:
        return Result(cell, absent=str(reason))
    version = _output(python, "import torch; print(torch.__version__)")
    smoke, error = _train(python)
    passed, skipped, failed = _run_tests(python, tests)
    return Result(cell, "", version, passed, skipped, failed, smoke, error)


def _output(python: Path, code: str) -> str:
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    return done.stdout.strip() or next(reversed(done.stderr.splitlines()), "")


def _train(python: Path) -> tuple[dict[str, Any] | None, str]:
    done = subprocess.run([str(python), "-m", "tools.matrix.smoke"], cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode:
        return None, next(reversed(done.stderr.splitlines()), f"it ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found, ""


def _run_tests(python: Path, tests: tuple[str, ...]) -> tuple[int, int, tuple[str, ...]]:
    """The numbers of tests that passed and that were skipped, and the names of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
        variables = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
        try:
            done = subprocess.run(
                command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, timeout=_LIMIT
            )
        except subprocess.TimeoutExpired as late:
            return 0, 0, (f"pytest did not end within {_LIMIT:,} seconds ({how_far(late.stdout or b'')})",)
        if not report.exists():
            return 0, 0, (f"pytest did not run: {next(reversed(done.stdout.splitlines()), done.stderr[-200:])}",)
        return read_report(report.read_text())


def how_far(output: bytes) -> str:
    """The state that pytest had printed when it was stopped: its last percentage, and how many tests had failed."""
    lines = re.findall(r"^([.sxXFE]+)(?: +\[ *(\d+)%\])?$", output.decode(errors="replace"), re.MULTILINE)
    done = next((percent for _, percent in reversed(lines) if percent), "0")
    failed = sum(marks.count("F") + marks.count("E") for marks, _ in lines)
    return f"{done} % done, {failed} failed until then"


def read_report(xml: str) -> tuple[int, int, tuple[str, ...]]:
    """The numbers of tests in a JUnit report that passed and that were skipped, and the names of those that failed."""
    cases = list(ElementTree.fromstring(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "", xml)).iter("testcase"))
    failed = tuple(
        f"{c.get('classname', '')}::{c.get('name', '')}"
        for c in cases
        if c.find("failure") is not None or c.find("error") is not None
    )
    skipped = sum(c.find("skipped") is not None for c in cases)
    return len(cases) - skipped - len(failed), skipped, failed
