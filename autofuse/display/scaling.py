"""The scaling of a planned step, in tables. This file needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofuse.results.table import Cell, Column, Table
from autofuse.results.units import duration, percent, size

_TITLES = {
    "strong": "strong scaling: the same batch over all devices",
    "weak": "weak scaling: the batch on each device",
}


def scaling_tables(scaling: Mapping[str, Any]) -> tuple[Table, ...]:
    """One table for each mode, with a row for each strategy and number of devices.

    A row has the bytes sent, and the step time and the efficiency in the worst and in the best case.
    """
    names = ("a device sends", "step at worst", "at best", "efficiency at worst", "at best")
    columns = (Column("devices", "right"), Column("split"), *(Column(name, "right") for name in names))
    tables = []
    for mode, title in _TITLES.items():
        rows = tuple(_row(e) for e in scaling["estimates"] if e["mode"] == mode)
        tables.append(Table(f"{title} (simulated)", columns, rows))
    return tuple(tables)


def scaling_sentences(scaling: Mapping[str, Any]) -> tuple[str, ...]:
    """The advice with its reason, the memory of one device, and the assumptions."""
    advice = scaling["advice"]
    split = f"Recommended strategy: {advice['strategy']}. " if advice["strategy"] else ""
    held = ", ".join(f"{s} {size(b)}" for s, b in scaling["bytes_per_device"].items() if b is not None)
    described = [f"{split}{advice['why']}"]
    if held:
        described.append(f"The memory of one of {scaling['devices'][-1]} devices: {held}.")
    return (
        *described,
        *scaling["notes"],
        "In the worst case, no communication overlaps with computation. In the best case, as much as possible does.",
    )


def _row(found: Mapping[str, Any]) -> tuple[Cell, ...]:
    return (
        Cell(str(found["devices"])), Cell(found["strategy"]), Cell(size(found["sent"])),
        Cell(duration(found["worst"])), Cell(duration(found["best"])),
        Cell(percent(found["efficiency_worst"])), Cell(percent(found["efficiency_best"])),
    )  # fmt: skip
