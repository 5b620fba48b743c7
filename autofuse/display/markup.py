"""Tables as HTML fragments for any page or notebook: inline styles only, all text escaped."""

from __future__ import annotations

from html import escape

from autofuse.results.table import Cell, Column, Table, Tone

# Colours that are legible on white and on near-black, because a notebook may be either.
TONES: dict[Tone, str] = {
    "plain": "inherit",
    "good": "#1a8754",
    "bad": "#d6453d",
    "warn": "#b0740c",
    "quiet": "#808080",
}
_CELL = "padding:.25em .8em;vertical-align:top;border-bottom:1px solid rgba(128,128,128,.3)"


def table(content: Table) -> str:
    """The table as one `<div>`: title, `<table>`, caption. Wide tables scroll inside it."""
    head = "".join(f'<th scope="col" style="{_style(column)}">{escape(column.name)}</th>' for column in content.columns)
    body = "".join(_row_html(content.columns, row) for row in content.rows)
    title = _line_html(content.title, "font-weight:600")
    rows = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    caption = _line_html(content.caption, f"color:{TONES['quiet']}")
    inner = f'{title}<table style="border-collapse:collapse;font-size:.9em">{rows}</table>{caption}'
    return f'<div style="overflow-x:auto">{inner}</div>'


def _row_html(columns: tuple[Column, ...], row: tuple[Cell, ...]) -> str:
    return f"<tr>{''.join(_cell_html(column, cell) for column, cell in zip(columns, row, strict=True))}</tr>"


def _cell_html(column: Column, cell: Cell) -> str:
    return f'<td style="{_style(column)};color:{TONES[cell.tone]}">{escape(cell.text)}</td>'


def _line_html(text: str, style: str) -> str:
    return f'<div style="{style}">{escape(text)}</div>' if text else ""


def _style(column: Column) -> str:
    wrap = "normal;min-width:16em" if column.wraps else "nowrap"
    return f"{_CELL};text-align:{column.align};white-space:{wrap}"
