"""A table as data: columns, and rows of cells with a tone. This file knows neither subjects nor drawing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "good", "bad", "warn", "quiet"]


@dataclass(frozen=True)
class Column:
    """A heading. align: "right" for numbers. wraps: whether the column shrinks if there is little room."""

    name: str
    align: Literal["left", "right"] = "left"
    wraps: bool = False


@dataclass(frozen=True)
class Cell:
    """A text. tone: its meaning, shown as a colour; the text says the same."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Table:
    """Rows under columns. Every row has as many cells as there are columns; raises ValueError otherwise."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"Table {self.title!r} has {len(self.columns)} columns and a row of {len(row)} cells.")


def without_empty_columns(table: Table) -> Table:
    """The same table without the columns that are empty in every row; all columns if there are no rows."""
    if not table.rows:
        return table
    empty = [c.name for i, c in enumerate(table.columns) if not any(row[i].text for row in table.rows)]
    return without_columns(table, empty)


def without_columns(table: Table, names: Collection[str]) -> Table:
    """The same table without the columns of these names."""
    kept = [i for i, column in enumerate(table.columns) if column.name not in names]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return Table(table.title, tuple(table.columns[i] for i in kept), rows, table.caption)
