"""The findings in files, one for each place, and the JSON that `autofuse check` prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autofuse.results.visible_text import visible

FIELDS = (
    *("code", "rule", "path", "line", "end_line", "column", "symbol", "status"),
    *("message", "reason", "advice", "value", "value_line", "mask", "reason_code"),
)


@dataclass(frozen=True)
class Finding:
    """One place, as `autofuse check --format json` prints it. Lines and columns count from 1."""

    code: str
    rule: str
    path: str
    line: int
    end_line: int
    column: int
    symbol: str
    status: str  # safe, unsafe, report, declined
    message: str
    reason: str
    advice: str = ""  # what to change
    value: str = ""  # the value that prevents the edit, as it is written, and its line
    value_line: int | None = None
    mask: str = ""  # what was proved about the mask of the scores
    reason_code: str = ""  # if declined or reported: the kind of the reason, a code of docs/refusals.md
    cell: int | None = None  # in a notebook: the number of the cell, from 1; lines count within the cell

    @property
    def place(self) -> str:
        """`model.py:12` or `model.ipynb:cell 3:12`, for display. Special characters in the name are escaped."""
        name = visible(self.path)
        return f"{name}:{self.line}" if self.cell is None else f"{name}:cell {self.cell}:{self.line}"


def as_json(findings: Iterable[Finding]) -> dict[str, object]:
    """The object that `autofuse check --format json` prints; docs/cli.md describes it."""
    return {"version": 1, "findings": [_fields(f) for f in findings]}


def _fields(finding: Finding) -> dict[str, object]:
    """The fields of one finding; `cell` only for a notebook."""
    cell = {} if finding.cell is None else {"cell": finding.cell}
    return {f: getattr(finding, f) for f in FIELDS} | cell
