"""Style rules that tools check: ruff, and strict types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


def passes(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_reports_nothing() -> None:
    passes("ruff", "check", "--no-cache", "--quiet", "--output-format", "concise")


@pytest.mark.slow
def test_types_are_strict_throughout() -> None:
    passes("mypy", "--cache-dir", os.devnull)
