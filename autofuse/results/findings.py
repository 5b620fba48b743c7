"""What was found in files: one finding for each place, and the JSON that `autofuse check` prints."""

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
    """One place: what `autofuse check --format json` prints. Lines and columns count from 1."""

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
    value: str = ""  # what stands in the way, as it is written, and the line where it does
    value_line: int | None = None
    mask: str = ""  # what the mask of the scores is proved to be
    reason_code: str = ""  # of what is declined or reported: the kind of the reason, a code of docs/refusals.md
    cell: int | None = None  # of a notebook, all its cells counted from 1; lines count from the cell's first

    @property
    def place(self) -> str:
        """`model.py:12`, or `model.ipynb:cell 3:12`, to be shown: the name is in one line, whatever it holds."""
        name = visible(self.path)
        return f"{name}:{self.line}" if self.cell is None else f"{name}:cell {self.cell}:{self.line}"


def as_json(findings: Iterable[Finding]) -> dict[str, object]:
    """The object that `autofuse check --format json` prints; docs/cli.md describes it."""
    return {"version": 1, "findings": [_fields(f) for f in findings]}


def _fields(finding: Finding) -> dict[str, object]:
    """The fields of one finding; one in a notebook has its cell too."""
    cell = {} if finding.cell is None else {"cell": finding.cell}
    return {f: getattr(finding, f) for f in FIELDS} | cell
