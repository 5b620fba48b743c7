"""The report of optimize, place by place. Plain data, without torch and without drawing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from autofuse.results.compile_choice import CompileChoice
from autofuse.results.repeated_names import in_common, pattern_of, patterns_of
from autofuse.results.shown import Shown
from autofuse.results.step_times import StepTime
from autofuse.results.table import Cell, Column, Table, Tone, without_empty_columns

if TYPE_CHECKING:
    from autofuse.results.before_after import BeforeAfter

Status = Literal["fused", "declined", "rolled-back"]
Ran = Literal["original", "captured anew"]
FORMAT_VERSION = 1

_TONES: dict[Status, Tone] = {"fused": "good", "declined": "quiet", "rolled-back": "bad"}
_COLUMNS = (
    Column("rule"),
    Column("module", wraps=True),
    Column("status"),
    Column("max error", align="right"),
    Column("where"),
    Column("kernel, or reason", wraps=True),
)
_SHORT = (
    Column("rule"),
    Column("modules", wraps=True),
    Column("status"),
    Column("kernel, or reason", wraps=True),
    Column("max error", align="right"),
    Column("where"),
)
PART = "as part of "  # the reason of a site that is fused as a part of another rule's site
_RAN: dict[Ran, Tone] = {"original": "bad", "captured anew": "good"}
_FALLBACK_COLUMNS = (
    Column("module", wraps=True),
    Column("guard that failed", wraps=True),
    Column("calls", align="right"),
    Column("ran"),
)


@dataclass(frozen=True)
class SiteReport:
    """One place where a rule matched or nearly matched.

    Attributes:
        rule: the code, for example "AF101".
        module: the fully qualified name in the model, "" for the model itself.
        status: "fused" (installed and verified), "declined" (never changed) or "rolled-back" (failed verification,
            undone).
        reason: a sentence, if the status is not "fused".
        kernel: what runs there now.
        max_error: the difference of the output or gradient that is nearest its bound, relative to the largest entry of
            that tensor; None if it was not verified.
        file: the file of the original code, if known.
        line: its line, if known.
        advice: what to change so that it can be fused.
        value: the value that prevents the fusion, as its author wrote it.
        value_line: the line of that value.
        mask: what was proved about the mask of the scores, and how.
        reason_code: the kind of `reason`, a code of docs/refusals.md, if the status is not "fused".
        choice: the chosen kernel and why, if kernels were timed.
    """

    rule: str
    module: str
    status: Status
    reason: str = ""
    kernel: str = ""
    max_error: float | None = None
    file: str = ""
    line: int | None = None
    advice: str = ""
    value: str = ""
    value_line: int | None = None
    mask: str = ""
    reason_code: str = ""
    choice: str = ""


@dataclass(frozen=True)
class Fallback:
    """Calls of one module that its fused forward does not support.

    Attributes:
        module: the fully qualified name in the model, "" for the model itself. If a compiler used the original of
            modules that share their code, all their names, with ", " between them.
        guard: the condition of the fused forward that failed, for example "self.training is False".
        calls: the number of calls. If a module falls back very often, later calls count for the guard that failed last.
            For a compiler, the number of times that it used the original.
        ran: what ran instead: "original", or "captured anew" if another fused forward was made for this kind of call.
            It runs from then on.
    """

    module: str
    guard: str
    calls: int
    ran: Ran


@dataclass(frozen=True)
class Report(Shown):
    """All places of one model, in the order of its modules.

    Prints as a table, also in notebooks. Equal places of repeated layers are one line; `details()` has a line for each.

    Attributes:
        steps: the times of whole steps with and without the fused places, in training and inference, if measured.
        compiled: what torch.compile runs, if `compile` was requested.
        profile: before and after, if optimize was asked for it. It is not part of to_dict(), and has its own.
    """

    sites: tuple[SiteReport, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    profile: BeforeAfter | None = None
    steps: tuple[StepTime, ...] = ()
    compiled: CompileChoice | None = None

    def with_status(self, status: Status) -> tuple[SiteReport, ...]:
        """The sites with this status, in order."""
        return tuple(site for site in self.sites if site.status == status)

    @property
    def summary(self) -> str:
        """One line, for example "9 fused (and 4 within them), 1 declined"; "no sites found" if there are none.

        A place that is part of a larger fused one is counted apart: the table has no line for it.
        """
        counts = Counter("within" if _is_part(site) else site.status for site in self.sites)
        within = f" (and {counts['within']} within them)" if counts["within"] else ""
        described = {status: f"{counts[status]} {status}" for status in _TONES if counts[status]}
        if within:
            described["fused"] = f"{counts['fused']} fused{within}"
        return ", ".join(described.values()) or "no sites found"

    @property
    def headline(self) -> str:
        """The time of a step, for example "training step 1.54x (1.48 to 1.60): 110 ms, the original 170 ms".

        The mode of the model comes first. "autofuse" if no step was timed.
        """
        compiled = () if self.compiled is None else (str(self.compiled),)
        return "; ".join((*map(str, self.steps), *compiled)) or "autofuse"

    def table(self) -> Table:
        """The places, one line for each kind: equal places of repeated layers are one line. Without empty columns."""
        whole = [s for s in self.sites if not _is_part(s)]
        names = patterns_of({s.module: "" for s in whole})
        groups: defaultdict[tuple[str, ...], list[SiteReport]] = defaultdict(list)
        for s in whole:
            groups[names[s.module], s.rule, s.status, s.kernel, *map(pattern_of, (s.reason, s.advice))].append(s)
        rows = tuple(_short_row(names[sites[0].module], sites) for sites in groups.values())
        folded = len(rows) < len(self.sites)
        caption = f"{self.summary}; .details() lists every place" if folded else self.summary
        return without_empty_columns(Table(self.headline, _SHORT, rows, caption))

    def details(self) -> ReportDetails:
        """All places, with their masks. Prints as a table, also in notebooks."""
        return ReportDetails(self)

    def fallback_table(self) -> Table | None:
        """The calls that did not run a fused forward; None if there were none."""
        if not self.fallbacks:
            return None
        rows = tuple(
            (Cell(f.module or "(model)"), Cell(f.guard), Cell(str(f.calls)), Cell(f.ran, _RAN[f.ran]))
            for f in self.fallbacks
        )
        return Table("calls without a fused forward", _FALLBACK_COLUMNS, rows)

    def to_dict(self) -> dict[str, Any]:
        """`{"version": 1, "sites": [...], "fallbacks": [...], "steps": [...], "compiled": ...}`. See docs/json.md."""
        return {
            "version": FORMAT_VERSION,
            "sites": [asdict(site) for site in self.sites],
            "fallbacks": [asdict(fallback) for fallback in self.fallbacks],
            "steps": [step.to_dict() for step in self.steps],
            "compiled": None if self.compiled is None else self.compiled.to_dict(),
        }

    def tables(self) -> tuple[Table, ...]:
        """All tables: the sites, and the fallback calls if there were any."""
        fallbacks = self.fallback_table()
        return (self.table(),) if fallbacks is None else (self.table(), fallbacks)

    def __len__(self) -> int:
        return len(self.sites)

    def __bool__(self) -> bool:
        return True  # an empty report is a result, too

    def __iter__(self) -> Iterator[SiteReport]:
        return iter(self.sites)


@dataclass(frozen=True)
class ReportDetails(Shown):
    """A report with one line for each place, as `Report.details()` returns it."""

    report: Report

    def to_dict(self) -> dict[str, Any]:
        """The dict of the report."""
        return self.report.to_dict()

    def tables(self) -> tuple[Table, ...]:
        """The places without empty columns, and the fallback calls if there were any."""
        rows = tuple(map(_row, self.report.sites))
        sites = without_empty_columns(Table(self.report.headline, _COLUMNS, rows, self.report.summary))
        return sites, *self.report.tables()[1:]


def _is_part(site: SiteReport) -> bool:
    """Whether a site is fused as a part of another one."""
    return site.status == "fused" and site.reason.startswith(PART)


def _short_row(module: str, sites: list[SiteReport]) -> tuple[Cell, ...]:
    """One line for equal places: the largest of their errors, and the location of the first."""
    first, errors = sites[0], [s.max_error for s in sites if s.max_error is not None]
    places = {_where(s) for s in sites}
    said = (first.kernel, in_common([s.reason for s in sites]), in_common([s.advice for s in sites]))
    return (
        Cell(first.rule),
        Cell((module or "(model)") + (f" x{len(sites)}" if len(sites) > 1 else "")),
        Cell(first.status, _TONES[first.status]),
        Cell("; ".join(filter(None, said))),
        Cell(f"{max(errors):.1e}" if errors else ""),
        Cell(_where(first) + (" ..." if len(places) > 1 else ""), "quiet"),
    )


def _row(site: SiteReport) -> tuple[Cell, ...]:
    mask = f"mask: {site.mask}" if site.mask else ""
    return (
        Cell(site.rule),
        Cell(site.module or "(model)"),
        Cell(site.status, _TONES[site.status]),
        Cell("" if site.max_error is None else f"{site.max_error:.1e}"),
        Cell(_where(site), "quiet"),
        Cell("; ".join(part for part in (site.kernel, mask, site.reason, site.advice, site.choice) if part)),
    )


def _where(site: SiteReport) -> str:
    if not site.file:
        return ""
    name = site.file.replace("\\", "/").rsplit("/", 1)[-1]
    return name if site.line is None else f"{name}:{site.line}"
