"""Makes the environment of a cell: an interpreter, its torch, autofuse from this tree, and what the tests need."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools.matrix.cells import Cell

REPOSITORY = Path(__file__).parents[2]
_FREE = ("torch", "triton")  # the cell's torch decides their versions
# Triton before 3.7, which torch before 2.12 installs, converts arrays of one element to numbers in its interpreter.
# NumPy 2.4 refuses that. Compiled kernels do not need NumPy.
_OLD_INTERPRETER, _NUMPY = (2, 12), "numpy<2.4"


class NoEnvironment(Exception):
    """The environment of a cell cannot be made. The message says why."""


def environment(cell: Cell, folder: Path) -> Path:
    """The interpreter of the cell's environment below `folder`. An environment that is there is used again.

    Raises:
        NoEnvironment: There is no such Python, or pip cannot install these versions.
    """
    place = folder / cell.name
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        _make(cell, place)
        (place / "complete").touch()
    # The tree may have moved since then.
    _run([str(python), "-m", "pip", "install", "-q", "--no-deps", "-e", str(REPOSITORY)])
    return python


def _make(cell: Cell, place: Path) -> None:
    interpreter = shutil.which(f"python{cell.python}")
    if interpreter is None:
        raise NoEnvironment(f"no python{cell.python} is on the PATH")
    _run([interpreter, "-m", "venv", "--clear", str(place)])
    constraints = place / "constraints.txt"
    constraints.write_text("\n".join(constraints_of(cell)) + "\n")
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", "--no-compile", "-c", str(constraints)]
    _run([*pip, f"torch=={cell.torch}"])
    _run([*pip, f"torch=={cell.torch}", f"{REPOSITORY}[test]"])


def constraints_of(cell: Cell) -> list[str]:
    """The versions of packages in the cell's environment, as lines for pip."""
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    kept = [x for x in lines if x.partition("==")[0] not in _FREE]
    if tuple(map(int, cell.torch.split(".")[:2])) >= _OLD_INTERPRETER:
        return kept
    return [*(x for x in kept if not x.startswith("numpy==")), _NUMPY]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise NoEnvironment(errors[-1] if errors else f"{command[0]} ended with {done.returncode}")
