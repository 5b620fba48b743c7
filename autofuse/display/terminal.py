"""Tables drawn with rich, on a terminal or as plain text. This file does not depend on their subject."""

from __future__ import annotations

import io
import os
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from autofuse.results.table import Cell, Table, Tone, without_columns

STYLES: dict[Tone, str] = {"plain": "", "good": "green", "bad": "bold red", "warn": "yellow", "quiet": "dim"}
_WIDTH_WITHOUT_TERMINAL = 100
_WIDTH_OF_A_FILE = 120
_LENGTHS = (
    150,
    120,
    100,
    80,
    60,
    40,
)  # lengths in characters: texts are cut to one after the other until the table is short enough
_WRAPPED = 24  # characters: a narrower column that wraps cannot be read


def stdout() -> Console:
    """A console for standard output; if that is not a terminal, wide enough for every column."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH_OF_A_FILE
    return console


def as_rich(table: Table) -> RichTable:
    """The table as a rich renderable. If there is little room, columns that wrap shrink first."""
    result = RichTable(
        title=table.title or None,
        caption=table.caption or None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for column in table.columns:
        result.add_column(column.name, justify=column.align, overflow="fold", no_wrap=not column.wraps)
    for row in table.rows:
        # Text, never markup: a reason may contain square brackets.
        result.add_row(*(Text(cell.text, STYLES[cell.tone]) for cell in row))
    return result


def fitted(table: Table, width: int, droppable: Sequence[tuple[str, ...]]) -> Table:
    """The table without the first groups of columns in `droppable`: as many as necessary to fit."""
    for names in droppable:
        if _width(table) <= width:
            break
        table = without_columns(table, names)
    return table


@dataclass(frozen=True)
class Fitted:
    """A table that fits the terminal.

    It leaves out the columns of `droppable`, one group after the other, until it is narrow enough. If it has more than
    `most_lines` lines, it leaves out all of these, and then long texts are shortened. The caption says where they can
    be read.
    """

    table: Table
    droppable: Sequence[tuple[str, ...]]
    most_lines: int | None = None
    elsewhere: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        *shorter, shortest = self._shrink(options.max_width)
        fits = (t for t in shorter if len(console.render_lines(as_rich(t), options)) <= (self.most_lines or 0))
        yield as_rich(next(fits, shortest))

    def _shrink(self, width: int) -> Iterator[Table]:
        """Yield shorter forms of the table: without the columns of `droppable`, then with shorter and shorter texts."""
        table = fitted(self.table, width, self.droppable)
        yield table
        if self.most_lines is not None:
            narrow = without_columns(table, [name for names in self.droppable for name in names])
            yield narrow
            yield from (_shorten_texts(narrow, length, self.elsewhere) for length in _LENGTHS)


def _shorten_texts(table: Table, length: int, elsewhere: str) -> Table:
    """The table with texts of at most `length` characters in columns that wrap. `elsewhere` is added to the caption."""

    def shorten(cell: Cell) -> Cell:
        return replace(cell, text=textwrap.shorten(cell.text, length, placeholder=" ..."))

    wraps = [column.wraps for column in table.columns]
    rows = tuple(tuple(shorten(c) if w else c for c, w in zip(row, wraps, strict=True)) for row in table.rows)
    caption = table.caption if elsewhere in table.caption else f"{table.caption}; {elsewhere}"
    return replace(table, rows=rows, caption=caption) if rows != table.rows else table


def _width(table: Table) -> int:
    """The width of the table in characters; columns that wrap count with their smallest width."""
    cells = [[column.name, *(row[i].text for row in table.rows)] for i, column in enumerate(table.columns)]
    wanted = [max(cell_len(line) for text in texts for line in text.split("\n")) for texts in cells]
    return sum(min(w, _WRAPPED) if c.wraps else w for w, c in zip(wanted, table.columns, strict=True)) + 3 * len(wanted)


def text(renderable: RenderableType, width: int | None = None) -> str:
    """The renderable as text without colours. width: in characters; the terminal's by default, or 100."""
    wide = width or shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
    console = Console(file=io.StringIO(), width=wide, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")
