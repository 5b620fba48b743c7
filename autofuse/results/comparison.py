"""The result of measuring two variants of a model. Plain data and its forms, without torch and without measuring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal, NamedTuple

from autofuse.results.shown import Shown
from autofuse.results.table import Cell, Column, Table, Tone

Verdict = Literal["confirmed", "no-change", "regressed", "inconclusive"]
FORMAT_VERSION = 1

TONES: dict[Verdict, Tone] = {"confirmed": "good", "no-change": "plain", "regressed": "bad", "inconclusive": "warn"}
_SIDES = (Column(""), Column("before", align="right"), Column("after", align="right"))


class Interval(NamedTuple):
    """A closed interval. `x in interval` is true if x is between its ends."""

    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True)
class Estimate:
    """A ratio of times (dimensionless; above 1 is faster) and its 95 % interval."""

    ratio: float
    interval: Interval

    def __str__(self) -> str:
        return f"{self.ratio:.2f}x ({self.interval.low:.2f} to {self.interval.high:.2f})"


@dataclass(frozen=True)
class Category:
    """The operators of one kind in one step: how often they ran, their own seconds, and how often each operator ran."""

    count: int
    seconds: float
    operators: Mapping[str, int]


@dataclass(frozen=True)
class Comparison(Shown):
    """Two variants of one model, measured in interleaved pairs. Prints as a table, also in notebooks.

    Attributes:
        ratio: the median of the pairs' ratios before / after; above 1 if `after` is faster.
        interval: its 95 % interval.
        control: the same estimate between identical runs of `before`.
        verdict: see docs/measuring.md.
        reason: why, as a sentence.
        before_seconds: each timed step, in order.
        after_seconds: likewise. Steps with the same index ran one after the other.
        before_peak_bytes: the most memory that one step held in addition to what existed before it (parameters, inputs,
            optimizer state); None if it could not be measured.
        after_peak_bytes: likewise.
        memory_source: how memory was measured.
        operators_before: the operators of one step by category, under the category's name.
        operators_after: likewise.
        environment: versions and hardware.
        clock: which times were compared: "wall", or "core" if other programs used the cores. "core" is the part of each
            step's time for which it had a core.
        before_core_seconds: the times for which each step had a core; empty if `clock` is "wall".
        after_core_seconds: likewise.
    """

    ratio: float
    interval: Interval
    control: Estimate
    verdict: Verdict
    reason: str
    before_seconds: tuple[float, ...]
    after_seconds: tuple[float, ...]
    before_peak_bytes: int | None = None
    after_peak_bytes: int | None = None
    memory_source: str = ""
    operators_before: Mapping[str, Category] = field(default_factory=dict)
    operators_after: Mapping[str, Category] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    clock: Literal["wall", "core"] = "wall"
    before_core_seconds: tuple[float, ...] = ()
    after_core_seconds: tuple[float, ...] = ()

    @property
    def pairs(self) -> int:
        """The number of timed pairs of steps."""
        return len(self.before_seconds)

    @property
    def before_median(self) -> float:
        """The median step before, in seconds."""
        return median(self.before_seconds)

    @property
    def after_median(self) -> float:
        """The median step after, in seconds."""
        return median(self.after_seconds)

    @property
    def summary(self) -> str:
        """One line: verdict, ratio and interval."""
        return f"{self.verdict}: {Estimate(self.ratio, self.interval)}"

    def table(self) -> Table:
        """Time, memory and verdict, before and after."""
        return Table("step", _SIDES, (*self._measured_rows(), *self._verdict_rows()), self.reason)

    def operators_table(self) -> Table:
        """The count and the time of each kind of operator in one step, and the new fused operators."""
        return Table("operators in one step", _OPERATOR_COLUMNS, tuple(_operator_rows(self)))

    def to_dict(self) -> dict[str, Any]:
        """Each field under its own name, after `version`. See docs/json.md."""
        return {
            "version": FORMAT_VERSION,
            "verdict": self.verdict,
            "reason": self.reason,
            "ratio": self.ratio,
            "interval": list(self.interval),
            "control": {"ratio": self.control.ratio, "interval": list(self.control.interval)},
            "pairs": self.pairs,
            "before_seconds": list(self.before_seconds),
            "after_seconds": list(self.after_seconds),
            "before_peak_bytes": self.before_peak_bytes,
            "after_peak_bytes": self.after_peak_bytes,
            "memory_source": self.memory_source,
            "operators_before": {name: asdict(category) for name, category in self.operators_before.items()},
            "operators_after": {name: asdict(category) for name, category in self.operators_after.items()},
            "environment": dict(self.environment),
            "clock": self.clock,
            "before_core_seconds": list(self.before_core_seconds),
            "after_core_seconds": list(self.after_core_seconds),
        }

    def tables(self) -> tuple[Table, ...]:
        """The table of the comparison, and the table of operators if they were counted."""
        if not (self.operators_before or self.operators_after):
            return (self.table(),)
        return (self.table(), self.operators_table())

    def _measured_rows(self) -> tuple[tuple[Cell, ...], ...]:
        times = (Cell("median step"), Cell(milliseconds(self.before_median)), Cell(milliseconds(self.after_median)))
        peaks = (Cell("peak memory"), Cell(size(self.before_peak_bytes)), Cell(size(self.after_peak_bytes)))
        rows: list[tuple[Cell, ...]] = [times]
        if self.clock == "core":
            held = (median(self.before_core_seconds), median(self.after_core_seconds))
            rows.append((Cell("of it with a core"), *(Cell(milliseconds(seconds)) for seconds in held)))
        if not (self.before_peak_bytes is None and self.after_peak_bytes is None):
            rows.append(peaks)
        return tuple(rows)

    def _verdict_rows(self) -> tuple[tuple[Cell, ...], ...]:
        tone = TONES[self.verdict]
        return (
            (Cell(f"ratio, {self.pairs} pairs"), Cell(""), Cell(str(Estimate(self.ratio, self.interval)), tone)),
            (Cell("control (before, before)", "quiet"), Cell(str(self.control), "quiet"), Cell("")),
            (Cell("verdict"), Cell(""), Cell(self.verdict, tone)),
        )


_OPERATOR_COLUMNS = (
    Column("category"),
    Column("before", align="right"),
    Column("after", align="right"),
    Column("time before", align="right"),
    Column("time after", align="right"),
    Column("new", wraps=True),
)


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with three digits, e.g. "12.3 ms"."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:,.0f} ms"


def size(count: int | None) -> str:
    """Bytes in MiB, e.g. "26.0 MiB"; empty for None."""
    return "" if count is None else f"{count / 2**20:,.1f} MiB"


def _by_time(comparison: Comparison) -> list[tuple[str, Category, Category]]:
    """Each category with both sides, sorted by time, the longest first."""
    none = Category(0, 0.0, {})
    befores, afters = comparison.operators_before, comparison.operators_after
    names = dict.fromkeys((*befores, *afters))
    sides = [(name, befores.get(name, none), afters.get(name, none)) for name in names]
    return sorted(sides, key=lambda side: -max(side[1].seconds, side[2].seconds))


def _operator_rows(comparison: Comparison) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for name, before, after in _by_time(comparison):
        new = ", ".join(
            f"{operator} x{n}" for operator, n in after.operators.items() if operator not in before.operators
        )
        counts = (Cell(str(before.count)), Cell(str(after.count)))
        times = (Cell(milliseconds(before.seconds)), Cell(milliseconds(after.seconds)))
        rows.append((Cell(name), *counts, *times, Cell(new, "good")))
    return rows
