"""The places that a compiled model leaves unfused, and its graph breaks. Plain data, without torch or Dynamo."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from autofuse.results.shown import Shown
from autofuse.results.table import Cell, Column, Table, Tone, without_empty_columns

Status = Literal["unfused", "declined"]
FORMAT_VERSION = 1

_TONES: dict[Status, Tone] = {"unfused": "warn", "declined": "quiet"}
_SITES = (
    Column("rule"),
    Column("status"),
    Column("count", align="right"),
    Column("module", wraps=True),
    Column("where"),
    Column("would become, or reason", wraps=True),
)
_BREAKS = (Column("graph break"), Column("count", align="right"), Column("reason", wraps=True))
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


@dataclass(frozen=True)
class UnfusedSite:
    """One line of code where a rule applies or nearly applies, in all modules that run it.

    Attributes:
        rule: the code, for example "AF101".
        status: "unfused" (the rule applies and a fused operation is possible) or "declined" (`reason` says why not).
        reason: why the site is declined.
        file: the file of the innermost line of the user's code.
        line: its line.
        modules: the fully qualified names of the modules that run it, in the order in which they ran.
        count: the number of these modules.
        operation: the operation that could be called there, for example "autofuse.ops.attention".
        mask: what was proved about the mask of the scores.
        advice: what to change.
        value: the value that prevents the fusion, as its author wrote it.
        value_line: the line of that value.
        reason_code: the kind of `reason`, a code of docs/refusals.md.
    """

    rule: str
    status: Status
    file: str = ""
    line: int | None = None
    modules: tuple[str, ...] = ()
    count: int = 1
    operation: str = ""
    mask: str = ""
    reason: str = ""
    advice: str = ""
    value: str = ""
    value_line: int | None = None
    reason_code: str = ""


@dataclass(frozen=True)
class GraphBreak:
    """One line where the compiler left the graph. No fusion extends across it.

    Attributes:
        reason: a sentence.
        file: the file of the innermost line of the user's code; "" if it is unknown.
        line: its line; None if it is unknown.
        count: how often it occurred while graphs were captured.
    """

    reason: str
    file: str = ""
    line: int | None = None
    count: int = 1


@dataclass(frozen=True)
class Analysis(Shown):
    """All unfused sites and graph breaks of a compiled model. Prints as two tables, also in notebooks.

    Attributes:
        graphs: the number of graphs that were captured.
    """

    sites: tuple[UnfusedSite, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    graphs: int = 0

    @property
    def summary(self) -> str:
        """One line, e.g. "12 sites of 2 rules unfused, 1 declined; 1 graph break; 3 graphs"."""
        unfused = [s for s in self.sites if s.status == "unfused"]
        declined = sum(s.count for s in self.sites if s.status == "declined")
        rules = len({s.rule for s in unfused})
        found = (
            f"{_plural(sum(s.count for s in unfused), 'site')} of {_plural(rules, 'rule')} unfused" if unfused else ""
        )
        described = ", ".join(filter(None, (found or "nothing unfused", f"{declined} declined" if declined else "")))
        return "; ".join(
            (described, _plural(sum(b.count for b in self.breaks), "graph break"), _plural(self.graphs, "graph"))
        )

    def with_status(self, status: Status) -> tuple[UnfusedSite, ...]:
        """The sites with this status, in order."""
        return tuple(site for site in self.sites if site.status == status)

    def table(self) -> Table:
        """The sites, without columns that would be empty."""
        return without_empty_columns(Table("autofuse", _SITES, tuple(map(_site_row, self.sites)), self.summary))

    def breaks_table(self) -> Table:
        """The graph breaks."""
        return Table("", _BREAKS, tuple(map(_break_row, self.breaks)))

    def to_dict(self) -> dict[str, Any]:
        """Each field under its own name, after `version`. See docs/json.md."""
        return {
            "version": FORMAT_VERSION,
            "graphs": self.graphs,
            "sites": [asdict(site) | {"modules": list(site.modules)} for site in self.sites],
            "breaks": [asdict(found) for found in self.breaks],
        }

    def __len__(self) -> int:
        return len(self.sites)

    def __bool__(self) -> bool:
        return True  # an empty analysis is a result, too

    def __iter__(self) -> Iterator[UnfusedSite]:
        return iter(self.sites)

    def tables(self) -> tuple[Table, ...]:
        """The table of sites, and the table of graph breaks if there are any."""
        return (self.table(), self.breaks_table()) if self.breaks else (self.table(),)


def pattern_of(modules: tuple[str, ...]) -> str:
    """One name for all modules: "blocks.*.attn" if they differ in numbers only, otherwise the first and a count."""
    if len(modules) < 2:
        return modules[0] if modules else ""
    patterns = list(dict.fromkeys(_INDEX.sub("*", name) for name in modules))
    return patterns[0] if len(patterns) == 1 else f"{modules[0]}, ..."


def _site_row(site: UnfusedSite) -> tuple[Cell, ...]:
    mask = f"mask: {site.mask}" if site.mask else ""
    return (
        Cell(site.rule),
        Cell(site.status, _TONES[site.status]),
        Cell(str(site.count)),
        Cell(pattern_of(site.modules) or "(model)"),
        Cell(where(site.file, site.line), "quiet"),
        Cell("; ".join(part for part in (site.operation, mask, site.reason, site.advice) if part)),
    )


def _break_row(found: GraphBreak) -> tuple[Cell, ...]:
    return Cell(where(found.file, found.line) or "?", "warn"), Cell(str(found.count)), Cell(found.reason)


def where(file: str, line: int | None) -> str:
    """A place as tables show it: "model.py:42"."""
    if not file:
        return ""
    name = file.replace("\\", "/").rsplit("/", 1)[-1]
    return name if line is None else f"{name}:{line}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
