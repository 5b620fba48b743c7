"""What optimize did to a model, place by place. Plain data: it knows neither torch nor how a table is drawn."""

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
PART = "as part of "  # what a rule says that applies inside of another one's place, and is fused with it
_RAN: dict[Ran, Tone] = {"original": "bad", "captured anew": "good"}
_FALLBACK_COLUMNS = (
    Column("module", wraps=True),
    Column("guard that failed", wraps=True),
    Column("calls", align="right"),
    Column("ran"),
)


@dataclass(frozen=True)
class SiteReport:
    """One place where a rule matched, or nearly did.

    rule: the code, e.g. "AF101". module: the fully qualified name in the model, "" for the model itself.
    status: "fused" (installed and verified), "declined" (never touched) or "rolled-back" (failed verification, undone).
    reason: a sentence where the status is not "fused". kernel: what now runs there.
    max_error: what verification saw in the output or gradient nearest its bound, relative to that tensor's largest
        entry; None where not verified.
    file, line: the source of the original, where known.
    advice: what to change so that it can be fused. value, value_line: what stands in the way as its author wrote it,
        and the line where it does. mask: what the mask of the scores is proved to be, and how.
    reason_code: the kind of `reason`, where the status is not "fused": a code of docs/refusals.md.
    choice: which of the kernels that can compute it here was taken, and why, where they were timed.
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
    """Calls of one module that its fused forward was not made for.

    module: the fully qualified name in the model, "" for the model itself; several, with ", " between them, where a
        compiler took the original of modules that share their code.
    guard: what the fused forward takes for granted, and found otherwise, e.g. "self.training is False".
    calls: how many; of a module that falls back very often, later calls are counted by the guard that failed last. For
        a compiler, how many times it took the original.
    ran: what ran in its place: "original", or "captured anew" where a further fused forward was made for this kind of
        call, which runs from then on.
    """

    module: str
    guard: str
    calls: int
    ran: Ran


@dataclass(frozen=True)
class Report(Shown):
    """All places of one model, in the order of its modules. Prints as a table, in notebooks too: equal places of
    repeated layers are one line of it, and `details()` has a line for each.

    steps: what whole steps take with the fused places and without, in training and in inference, where they were timed.
    compiled: what torch.compile runs, where `compile` was asked for.
    profile: before and after, where optimize was asked for it; it is not part of to_dict() and has one of its own.
    """

    sites: tuple[SiteReport, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    profile: BeforeAfter | None = None
    steps: tuple[StepTime, ...] = ()
    compiled: CompileChoice | None = None

    def with_status(self, status: Status) -> tuple[SiteReport, ...]:
        """The sites with that status, in order."""
        return tuple(site for site in self.sites if site.status == status)

    @property
    def summary(self) -> str:
        """One line, e.g. "8 fused, 1 declined"; every status that occurs, "no sites found" where none does."""
        counts = Counter(site.status for site in self.sites)
        return ", ".join(f"{counts[status]} {status}" for status in _TONES if counts[status]) or "no sites found"

    @property
    def headline(self) -> str:
        """What a step takes, e.g. "training step 1.54x (1.48 to 1.60): 110 ms, the original 170 ms".

        The mode that the model was in comes first. "autofuse" where no step was timed.
        """
        compiled = () if self.compiled is None else (str(self.compiled),)
        return "; ".join((*map(str, self.steps), *compiled)) or "autofuse"

    def table(self) -> Table:
        """What was found, a line for each kind: equal places of repeated layers are one, without the empty columns."""
        whole = [s for s in self.sites if not (s.status == "fused" and s.reason.startswith(PART))]
        names = patterns_of({s.module: "" for s in whole})
        groups: defaultdict[tuple[str, ...], list[SiteReport]] = defaultdict(list)
        for s in whole:
            groups[names[s.module], s.rule, s.status, s.kernel, *map(pattern_of, (s.reason, s.advice))].append(s)
        rows = tuple(_short_row(names[sites[0].module], sites) for sites in groups.values())
        folded = len(rows) < len(self.sites)
        caption = f"{self.summary}; .details() lists every place" if folded else self.summary
        return without_empty_columns(Table(self.headline, _SHORT, rows, caption))

    def details(self) -> ReportDetails:
        """Every place, with its mask. Prints as a table, in notebooks too."""
        return ReportDetails(self)

    def fallback_table(self) -> Table | None:
        """The calls that ran something else than what was fused; None where there were none."""
        if not self.fallbacks:
            return None
        rows = tuple(
            (Cell(f.module or "(model)"), Cell(f.guard), Cell(str(f.calls)), Cell(f.ran, _RAN[f.ran]))
            for f in self.fallbacks
        )
        return Table("calls that no fused forward was made for", _FALLBACK_COLUMNS, rows)

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
        """All there is to see: the sites, and the calls that fell back if any did."""
        fallbacks = self.fallback_table()
        return (self.table(),) if fallbacks is None else (self.table(), fallbacks)

    def __len__(self) -> int:
        return len(self.sites)

    def __bool__(self) -> bool:
        return True  # an empty report is an answer, not the lack of one

    def __iter__(self) -> Iterator[SiteReport]:
        return iter(self.sites)


@dataclass(frozen=True)
class ReportDetails(Shown):
    """A report with a line for every place: what `Report.details()` gives."""

    report: Report

    def to_dict(self) -> dict[str, Any]:
        """That of the report."""
        return self.report.to_dict()

    def tables(self) -> tuple[Table, ...]:
        """The places, without the columns that would be empty, and the calls that fell back if any did."""
        rows = tuple(map(_row, self.report.sites))
        sites = without_empty_columns(Table(self.report.headline, _COLUMNS, rows, self.report.summary))
        return sites, *self.report.tables()[1:]


def _short_row(module: str, sites: list[SiteReport]) -> tuple[Cell, ...]:
    """One line for places that are alike: the largest error of all, and where the first stands."""
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
