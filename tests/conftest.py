"""Shared by all tests: one thread each, and the files of this repository."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import selection

# pytest-xdist runs one process for each core, so a process with several threads would slow down the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Triton's interpreter runs the kernels, so that no GPU is needed. The variable must be set before Triton is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")
# Measurements on a busy machine would decide what is fused. Tests of measuring switch it on themselves.
os.environ.setdefault("AUTOFUSE_MEASURED", "0")
# torch's profiler reads this once in a process, and some tests use the profiler before autofuse does.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

# Hundreds of tests start processes, which must share compiled bytecode, even if the environment disables it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

REPOSITORY = Path(__file__).parents[1]
_LEFT_BEHIND = ("__pycache__", ".venv", ".git", ".hypothesis", "build", "dist", "autofuse-demo", "autofuse.egg-info")


def pytest_addoption(parser: pytest.Parser) -> None:
    selection.add_option(parser)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if selection.left_out(collection_path, config) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selection.mark_night(items)
    selection.mark_fast(items)
    selection.deselect_night(config, items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the CPU time of the fast loop, and the number of programs that the metamorphic suite executed."""
    selection.print_seconds(terminalreporter)
    reports = [r for found in terminalreporter.stats.values() for r in found if isinstance(r, pytest.TestReport)]
    properties = [p for r in reports if r.when == "call" for p in r.user_properties]
    if programs := sum(int(str(n)) for name, n in properties if name == "programs"):
        terminalreporter.write_line(f"{programs} programs rewritten at random, and executed before and after")
    selection.print_attack(terminalreporter, [str(outcome) for name, outcome in properties if name == "attack"])
    selection.print_attack_on_files(
        terminalreporter, [str(outcome) for name, outcome in properties if name == "attack on files"]
    )


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a separate cache, so that the user's measurements do not choose the tested kernels and are not changed."""
    os.environ["AUTOFUSE_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def tree() -> dict[str, bytes]:
    """Every file of this repository that git tracks or would add, by path."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    names = listed.stdout.split("\0") if listed.returncode == 0 else _walk()
    return {name: (REPOSITORY / name).read_bytes() for name in names if name and (REPOSITORY / name).is_file()}


def _walk() -> list[str]:
    """The same without git, as in an unpacked archive."""
    files = (f.relative_to(REPOSITORY) for f in REPOSITORY.rglob("*"))
    return [str(f) for f in files if not any(p in _LEFT_BEHIND or p.endswith("_cache") for p in f.parts)]


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection: visiting ten thousand of them takes time."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def frozen_imports() -> None:
    """Exclude what earlier files imported from garbage collection, which some tests run often."""
    gc.collect()
    gc.freeze()
