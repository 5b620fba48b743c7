"""Tables on a terminal and as text."""

from __future__ import annotations

import io
from typing import get_args

import pytest
from rich.console import Console

from autofuse.display import markup
from autofuse.display.terminal import STYLES, as_rich, fitted, text
from autofuse.results.table import Cell, Column, Table, Tone

TABLE = Table(
    "title",
    (Column("name", wraps=True), Column("number", align="right")),
    ((Cell("[red]not markup[/red]", "good"), Cell("7")),),
    "caption",
)


def test_title_caption_and_cells_are_printed_without_markup() -> None:
    shown = text(TABLE)
    assert all(part in shown for part in ("title", "caption", "[red]not markup[/red]", "7"))


def test_tones_are_colours_on_a_terminal_only() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    with console.capture() as captured:
        console.print(as_rich(TABLE))
    assert "\x1b[32m" in captured.get()
    assert "\x1b" not in text(TABLE)


def test_without_a_terminal_text_is_a_hundred_columns_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = Table("", (Column("reason", wraps=True),), ((Cell("word " * 100),),))
    assert max(map(len, text(long).splitlines())) <= 100


def test_the_terminals_own_width_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = Table("", (Column("reason", wraps=True),), ((Cell("word " * 100),),))
    assert max(map(len, text(long).splitlines())) <= 40


def test_lines_do_not_end_in_blanks() -> None:
    assert all(line == line.rstrip() for line in text(TABLE, width=90).splitlines())


def test_every_tone_has_a_style_and_a_colour() -> None:
    assert set(STYLES) == set(markup.TONES) == set(get_args(Tone))


def test_columns_are_dropped_in_groups_and_only_as_many_as_necessary() -> None:
    names = ("layer", "before", "after", "share")
    table = Table("", tuple(Column(name) for name in names), (tuple(Cell("x" * 10) for _ in names),))

    def remaining_columns(width: int) -> list[str]:
        return [column.name for column in fitted(table, width, (("before", "after"), ("share",))).columns]

    assert remaining_columns(60) == list(names)
    assert remaining_columns(40) == ["layer", "share"]
    assert remaining_columns(20) == ["layer"]
