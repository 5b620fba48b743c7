"""Reads levels of utilisation from a CSV report of NVIDIA Nsight Compute: issue slots and SM sub-partitions.

`ncu --csv` writes two layouts: one row per kernel (`--page raw`, with a row of units), and one row per metric (`--page
details`, and the output of `--metrics`). The program's own output may surround the table. Numbers may be written as in
any locale. A level is the mean over the kernels of the report, weighted by their durations.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autofuse.results.ladder import Level

OPTIONS = "ncu --set full --csv --page raw"
METRICS = (
    "gpu__time_duration.sum,smsp__issue_active.avg.pct_of_peak_sustained_active,"
    "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed"
)


class Unsuitable(ValueError):
    """A file is not a report, or lacks a metric. The message says which option of ncu writes it."""


@dataclass
class Kernel:
    """One profiled launch: its metrics by name, percentages as such, durations in seconds."""

    name: str
    values: dict[str, float] = field(default_factory=dict)


Number = Callable[[str], float | None]

# Equivalent metrics: a percentage, or a quotient of two counts. The first one that a kernel has is used.
_ISSUE = (
    ("smsp__issue_active.avg.pct_of_peak_sustained_active", ""),
    ("smsp__issue_active.sum", "smsp__cycles_active.sum"),
    ("smsp__issue_active.avg", "smsp__cycles_active.avg"),
    ("smsp__issue_active.avg.per_cycle_active", "1"),
    ("One or More Eligible", ""),
    ("Issue Slots Busy", ""),
)
_ACTIVE = (
    ("smsp__cycles_active.avg.pct_of_peak_sustained_elapsed", ""),
    ("smsp__cycles_active.sum", "smsp__cycles_elapsed.sum"),
    ("smsp__cycles_active.avg", "smsp__cycles_elapsed.avg"),
    ("smsp__cycles_active.avg", "smsp__cycles_elapsed.max"),
    ("smsp__cycles_active.avg", "sm__cycles_elapsed.max"),
    ("smsp__cycles_active.avg", "gpc__cycles_elapsed.max"),
)
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration.max", "Duration")
_SECONDS = {
    "nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "µs": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1.0,
    "s": 1.0,
}  # fmt: skip


def levels_of_report(path: Path) -> dict[str, Level]:
    """Return issue_slots and sub_partitions. A level that the report lacks has a reason instead of a value.

    Raises:
        Unsuitable: The file is not a report, or has neither metric.
        OSError: The file cannot be read.
    """
    kernels = kernels_of(path)
    basis = f"Nsight Compute, {len(kernels)} {'kernel' if len(kernels) == 1 else 'kernels'}, weighted by duration"
    found = {}
    for name, metrics in (("issue_slots", _ISSUE), ("sub_partitions", _ACTIVE)):
        value = _weighted_mean(kernels, metrics)
        lacks = f"the report lacks {metrics[0][0]}: profile with `{OPTIONS}` or `ncu --csv --metrics {METRICS}`"
        found[name] = Level(name, reason=lacks) if value is None else Level(name, value, basis)
    if all(level.value is None for level in found.values()):
        raise Unsuitable(
            f"{path} has neither issue slots nor active cycles of SM sub-partitions for its kernels, with their "
            f"durations. Profile with `{OPTIONS} python script.py > report.csv`, or `ncu --csv --metrics {METRICS}`."
        )
    return found


def kernels_of(path: Path) -> list[Kernel]:
    """Return the launches in a report.

    Raises:
        Unsuitable: The file is not a report.
        OSError: The file cannot be read.
    """
    header, rows = _find_table(path)
    number = _number_reader(cell for row in rows for cell in row)
    if "Metric Name" in header:
        kernels = _kernels_by_metric_row(header, rows, number)
    else:
        kernels = _kernels_by_row(header, rows, number)
    if not kernels:
        raise Unsuitable(f"{path} has no kernels: nothing was profiled. Check the output of ncu, and its filters.")
    return kernels


def _find_table(path: Path) -> tuple[list[str], list[list[str]]]:
    data = path.read_bytes()
    if b"\0" in data[:4096] and data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        raise Unsuitable(
            f"{path} is a binary report. Write it as CSV: `ncu --import {path.name} --csv --page raw > report.csv`."
        )
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    lines = data.decode(encoding, errors="replace").splitlines()
    at = next((i for i, line in enumerate(lines) if "Kernel Name" in line), None)
    if at is None:
        raise Unsuitable(f"{path} is not a CSV report of Nsight Compute. Write one with `{OPTIONS} python script.py`.")
    separator = ";" if lines[at].count(";") > lines[at].count(",") else ","
    table = list(csv.reader((line for line in lines[at:] if not line.startswith("==")), delimiter=separator))
    return table[0], [row for row in table[1:] if len(row) == len(table[0])]


def _kernels_by_row(header: Sequence[str], rows: Sequence[list[str]], number: Number) -> list[Kernel]:
    """Read one row per kernel. The first row has units and no kernel number."""
    named = header.index("Kernel Name")
    units = next((row for row in rows if not row[named]), [""] * len(header))
    kernels = []
    for row in rows:
        if row[named]:
            cells = {name: _value(row[i], units[i], number) for i, name in enumerate(header) if "__" in name}
            kernels.append(Kernel(row[named], {name: value for name, value in cells.items() if value is not None}))
    return kernels


def _kernels_by_metric_row(header: Sequence[str], rows: Sequence[list[str]], number: Number) -> list[Kernel]:
    """Read one row per metric of a kernel. The ID column distinguishes the launches."""
    at = {name: i for i, name in enumerate(header)}
    kernels: dict[str, Kernel] = {}
    for row in rows:
        name = row[at["Kernel Name"]]
        if not name or not row[at["Metric Name"]]:
            continue
        kernel = kernels.setdefault(row[at["ID"]] if "ID" in at else name, Kernel(name))
        value = _value(row[at["Metric Value"]], row[at["Metric Unit"]] if "Metric Unit" in at else "", number)
        if value is not None:
            kernel.values.setdefault(row[at["Metric Name"]], value)
    return list(kernels.values())


def _value(text: str, unit: str, number: Number) -> float | None:
    value = number(text)
    return None if value is None else value * _SECONDS.get(unit.strip(), 1.0)


def _weighted_mean(kernels: Iterable[Kernel], metrics: Sequence[tuple[str, str]]) -> float | None:
    """Return the mean over kernels that have the metric, weighted by duration; None if none has it."""
    total = weight = 0.0
    for kernel in kernels:
        part = _fraction(kernel.values, metrics)
        seconds = next((kernel.values[name] for name in _DURATION if name in kernel.values), None)
        if part is not None and seconds is not None:
            total, weight = total + part * seconds, weight + seconds
    return total / weight if weight else None


def _fraction(values: Mapping[str, float], metrics: Sequence[tuple[str, str]]) -> float | None:
    for above, below in metrics:
        if above not in values:
            continue
        if not below:
            return values[above] / 100
        if below == "1":
            return values[above]
        if values.get(below):
            return values[above] / values[below]
    return None


_NUMBER = re.compile(r"-?[\d.,'\u00a0\u202f ]*\d(e[+-]?\d+)?", re.IGNORECASE)


def _number_reader(cells: Iterable[str]) -> Number:
    """Return a function that reads numbers in the format of these cells: 1,234.5 or 1.234,5 or 1 234,5.

    In 1,234 the comma may separate thousands or decimals. Then another number of the report decides. If none does, the
    comma separates thousands.
    """
    decimal_comma = False
    for cell in cells:
        text = cell.strip()
        if not _NUMBER.fullmatch(text) or "," not in text:
            continue
        if "." in text:
            decimal_comma = text.rindex(",") > text.rindex(".")
            break
        if text.count(",") == 1 and not re.search(r"^-?[1-9]\d{0,2},\d{3}$", text):
            decimal_comma = True
            break
    sign, other = (",", ".") if decimal_comma else (".", ",")

    def number(text: str) -> float | None:
        text = text.strip()
        if not _NUMBER.fullmatch(text):
            return None
        return float(re.sub(r"['\u00a0\u202f ]", "", text).replace(other, "").replace(sign, "."))

    return number
