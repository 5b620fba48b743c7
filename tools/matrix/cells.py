"""The cells of the matrix, and what was found in each."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).with_name("cells.toml")


@dataclass(frozen=True)
class Cell:
    """One version of Python with one version of torch. `ci` says whether CI runs it."""

    python: str
    torch: str
    ci: bool = False

    @property
    def name(self) -> str:
        """The name of its environment's folder."""
        return f"python{self.python}-torch{self.torch}"


@dataclass(frozen=True)
class Result:
    """The result of one cell.

    Attributes:
        cell: The versions that were asked for.
        absent: Why the environment could not be made; "" if it could.
        torch: The full version that was installed, such as "2.13.0+cpu".
        passed: The number of tests that passed.
        skipped: The number of tests that were skipped.
        failed: The names of the tests that failed.
        smoke: What the training printed; None if it did not run.
        smoke_error: The last line of its error; "" if it ran.
    """

    cell: Cell
    absent: str = ""
    torch: str = ""
    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    smoke: dict[str, Any] | None = None
    smoke_error: str = ""

    @property
    def tests_ran(self) -> bool:
        """Whether any test ran."""
        return self.passed > 0 or bool(self.failed)

    @property
    def training_is_equal(self) -> bool:
        """Whether the training ran, with equal losses."""
        return self.smoke is not None and bool(self.smoke["equal"])

    @property
    def holds(self) -> bool:
        """Whether the tests passed and the training was equal."""
        return not self.absent and not self.failed and self.passed > 0 and self.training_is_equal


def read_cells(path: Path = _TABLE) -> tuple[Cell, ...]:
    """The cells of the table, in its order."""
    return tuple(Cell(**row) for row in tomllib.loads(path.read_text())["cells"])


def results_from_json(text: str) -> list[Result]:
    """The results of a JSON file."""
    rows = json.loads(text)["results"]
    return [Result(**{**row, "cell": Cell(**row["cell"]), "failed": tuple(row["failed"])}) for row in rows]


def merge(old: Sequence[Result], new: Sequence[Result], cells: Sequence[Cell]) -> list[Result]:
    """The results in the order of the table. A new result takes the place of an old one."""
    found = {(r.cell.python, r.cell.torch): r for r in (*old, *new)}
    return [found[key] for c in cells if (key := (c.python, c.torch)) in found]


def results_as_json(results: Sequence[Result]) -> str:
    """The results as JSON."""
    return json.dumps({"version": 1, "results": [asdict(r) for r in results]}, indent=1) + "\n"
