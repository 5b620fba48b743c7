"""What all tests share: one thread each, and this repository's files as a fresh copy has them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import selection

# pytest-xdist runs a process for each core, so a process that used them all would only be in the others' way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Triton's kernels are run by its interpreter, which has to be said before Triton is imported: no GPU is needed.
os.environ.setdefault("TRITON_INTERPRET", "1")
# What a loaded machine measures would decide what tests find fused; those about measuring switch it on themselves.
os.environ.setdefault("AUTOFUSE_MEASURED", "0")
# torch's profiler reads it once in a process, and some tests use the profiler before autofuse does.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

# Hundreds of tests start processes: these read what one of them compiled, also where the environment wants no caches.
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
    selection.leave_the_night_out(config, items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the run has used where it was to be fast, and how many programs the metamorphic suite executed."""
    selection.tell_seconds(terminalreporter)
    reports = [r for found in terminalreporter.stats.values() for r in found if isinstance(r, pytest.TestReport)]
    properties = [p for r in reports if r.when == "call" for p in r.user_properties]
    if programs := sum(int(str(n)) for name, n in properties if name == "programs"):
        terminalreporter.write_line(f"{programs} programs rewritten at random, and executed before and after")
    selection.tell_attack(terminalreporter, [str(outcome) for name, outcome in properties if name == "attack"])
    selection.tell_attack_on_files(
        terminalreporter, [str(outcome) for name, outcome in properties if name == "attack on files"]
    )


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What was measured on this machine for its user must not choose the kernels that are tested, nor be added to."""
    os.environ["AUTOFUSE_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def tree() -> dict[str, bytes]:
    """Every file of this repository that is committed, or would be, by its path."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    names = listed.stdout.split("\0") if listed.returncode == 0 else _walked()
    return {name: (REPOSITORY / name).read_bytes() for name in names if name and (REPOSITORY / name).is_file()}


def _walked() -> list[str]:
    """The same where there is no git, as in an unpacked archive."""
    files = (f.relative_to(REPOSITORY) for f in REPOSITORY.rglob("*"))
    return [str(f) for f in files if not any(p in _LEFT_BEHIND or p.endswith("_cache") for p in f.parts)]


def pytest_collection_finish() -> None:
    """Ten thousand collected tests are not garbage: what goes through the heap need not go through them every time."""
    gc.freeze()
