"""One self-contained HTML page: one inline script, no request, light and dark themes.

The page is complete without its script, which sorts and filters tables and enlarges charts. A policy in the page's head
forbids the browser every other script and every request. This file does not depend on the subject of the page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Protocol, runtime_checkable

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from autofuse.results.table import Cell, Table, Tone
from autofuse.results.units import magnitude

_TEMPLATE, _SCRIPT = "page.html.j2", "page.js"
_FEWEST_SORTED = 4  # a table with fewer rows is not sorted
_FEWEST_FILTERED = 9  # a table with fewer rows has no filter
_DIFF_CLASSES = {"+": "added", "-": "removed", "@": "place"}


@dataclass(frozen=True)
class CodeBlock:
    """Source text. In a unified diff, added and removed lines are coloured."""

    text: str
    is_diff: bool = False


@dataclass(frozen=True)
class Figure:
    """A number in large type at the top of the page. note: what it is based on."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True)
class SuggestedAction:
    """An action. gain: the predicted saving. basis: the evidence and the confidence."""

    text: str
    gain: str = ""
    basis: str = ""


@dataclass(frozen=True)
class LeadingSentence:
    """The first sentence of the page, and what to do, the best action first."""

    sentence: str
    advice: tuple[SuggestedAction, ...] = ()


class Chart(Protocol):
    """A drawing.

    It may have a `legend`, the meaning of the classes of its marks. It may have `zooms`: if true, the script adds
    buttons that enlarge it along its axis.
    """

    @property
    def title(self) -> str:
        """The heading of the drawing."""

    def svg(self) -> str:
        """The drawing as `<svg>` elements."""


@runtime_checkable
class Fragment(Protocol):
    """A drawing in HTML, which escapes its own text. It may have a `legend`."""

    @property
    def title(self) -> str:
        """The heading of the drawing."""

    def markup(self) -> Markup:
        """The drawing as HTML whose text is escaped."""


@dataclass(frozen=True)
class Details:
    """Parts that are hidden until the reader opens them. summary: the line to click."""

    summary: str
    parts: tuple[Part, ...]


# A str is a paragraph.
Part = str | Table | CodeBlock | Details | Chart | Fragment


@dataclass(frozen=True)
class Section:
    """A heading and the parts below it, in order. note: a quiet sentence that explains them."""

    heading: str
    parts: tuple[Part, ...]
    note: str = ""


def page(
    title: str,
    summary: str,
    sections: Sequence[Section],
    figures: Sequence[Figure] = (),
    verdict: LeadingSentence | None = None,
) -> str:
    """The page as one text, to be written as UTF-8. All arguments are text and are escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("autofuse.display").joinpath(_TEMPLATE).read_text(encoding="utf-8"))
    script = files("autofuse.display").joinpath(_SCRIPT).read_text(encoding="utf-8").strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    drawn = [(section.heading, section.note, [drawn_part(part) for part in section.parts]) for section in sections]
    content = {"title": title, "summary": summary, "figures": figures, "verdict": verdict, "sections": drawn}
    return template.render(**content, script=Markup(script), script_digest=digest) + "\n"


def drawn_part(part: Part) -> Markup:
    """One part as an HTML fragment with all text escaped."""
    if isinstance(part, str):
        return Markup("<p>{}</p>").format(part)
    if isinstance(part, Table):
        return _table_html(part)
    if isinstance(part, CodeBlock):
        return Markup("<pre><code>{}</code></pre>").format(_code_lines_html(part))
    if isinstance(part, Details):
        inner = Markup().join(map(drawn_part, part.parts))
        return Markup("<details><summary>{}</summary>{}</details>").format(part.summary, inner)
    if isinstance(part, Fragment):
        return _figure_html(part.markup(), part)
    zooms = Markup(" data-zooms") if getattr(part, "zooms", False) else Markup()
    return _figure_html(Markup('<div class="scrolls"{}>{}</div>').format(zooms, Markup(part.svg())), part)


def _figure_html(drawn: Markup, part: Chart | Fragment) -> Markup:
    inner = Markup("{}<figcaption>{}</figcaption>{}").format(drawn, part.title, _legend_html(part))
    return Markup("<figure>{}</figure>").format(inner)


def _legend_html(chart: Chart | Fragment) -> Markup:
    entries: Mapping[str, str] = getattr(chart, "legend", {})
    item = Markup('<li><svg class="swatch" aria-hidden="true"><rect class="fill {}"/></svg>{}</li>')
    drawn = Markup().join(item.format(kind, name) for kind, name in entries.items())
    return Markup('<ul class="legend">{}</ul>').format(drawn) if entries else Markup()


def _table_html(table: Table) -> Markup:
    """A table that uses classes of the style sheet; markup.table uses inline styles."""
    kinds = [f"{column.align}{' wraps' if column.wraps else ''}" for column in table.columns]
    title = Markup("<caption>{}</caption>").format(table.title) if table.title else Markup()
    headings = zip(kinds, table.columns, strict=True)
    head = Markup().join(Markup('<th scope="col" class="{}">{}</th>').format(k, column.name) for k, column in headings)
    rows = Markup().join(Markup("<tr>{}</tr>").format(_cells_html(kinds, row)) for row in table.rows)
    below = Markup('<p class="note">{}</p>').format(table.caption) if table.caption else Markup()
    inner = Markup("<table{}>{}<thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(
        _script_attributes(table), title, head, rows
    )
    # The keyboard scrolls it too, so it needs a name for screen readers.
    named = table.title or ", ".join(column.name for column in table.columns if column.name)
    region = Markup('<div class="scrolls" role="region" aria-label="{}" tabindex="0">{}</div>{}')
    return region.format(named, inner, below)


def _script_attributes(table: Table) -> Markup:
    """Marks the tables that the script may sort and filter."""
    if not all(column.name for column in table.columns) or len(table.rows) < _FEWEST_SORTED:
        return Markup()
    return Markup(" data-sorts data-filters" if len(table.rows) >= _FEWEST_FILTERED else " data-sorts")


def _cells_html(kinds: Sequence[str], row: Sequence[Cell]) -> Markup:
    # The first column names the row: a screen reader reads it with each number.
    first = Markup('<th scope="row" class="{} {}">{}</th>').format(kinds[0], row[0].tone, row[0].text)
    rest = (
        Markup('<td class="{} {}"{}>{}</td>').format(kind, cell.tone, _sort_value(cell.text), cell.text)
        for kind, cell in zip(kinds[1:], row[1:], strict=True)
    )
    return first + Markup().join(rest)


def _sort_value(text: str) -> Markup:
    """The value by which the script sorts a cell whose text is a quantity."""
    value = magnitude(text)
    return Markup() if value is None else Markup(' data-value="{}"').format(f"{value:.6g}")


def _code_lines_html(code: CodeBlock) -> Markup:
    if not code.is_diff:
        return escape(code.text)
    return Markup("\n").join(_diff_line(line) for line in code.text.splitlines())


def _diff_line(line: str) -> Markup:
    kind = "" if line.startswith(("+++", "---")) else _DIFF_CLASSES.get(line[:1], "")
    return Markup('<span class="{}">{}</span>').format(kind, line) if kind else escape(line)
