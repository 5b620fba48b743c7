"""One self-contained HTML page: no script, no request, light and dark. It knows parts of pages, not their subject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from autofuse.report import markup
from autofuse.report.charts import LineChart, StripChart
from autofuse.report.table import Table, Tone

_TEMPLATE = "page.html.j2"
_DIFF_CLASSES = {"+": "added", "-": "removed", "@": "place"}


@dataclass(frozen=True)
class Code:
    """Source text. Where it is a unified diff, added and removed lines are coloured."""

    text: str
    is_diff: bool = False


@dataclass(frozen=True)
class Figure:
    """One number that matters, large at the top of the page: its label, its value, and what it rests on."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"


# A str is a paragraph.
Part = str | Table | LineChart | StripChart | Code


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, in order."""

    heading: str
    parts: tuple[Part, ...]


def page(title: str, summary: str, sections: Sequence[Section], figures: Sequence[Figure] = ()) -> str:
    """The page as one text to be written as UTF-8. Everything that is passed in is text, and is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("autofuse.report").joinpath(_TEMPLATE).read_text(encoding="utf-8"))
    drawn = [(section.heading, [drawn_part(part) for part in section.parts]) for section in sections]
    return template.render(title=title, summary=summary, figures=figures, sections=drawn, tones=markup.TONES) + "\n"


def drawn_part(part: Part) -> Markup:
    """One part as an HTML fragment that is safe to stand in a page."""
    if isinstance(part, str):
        return Markup("<p>{}</p>").format(part)
    if isinstance(part, Table):
        return Markup(markup.table(part))
    if isinstance(part, Code):
        return Markup("<pre><code>{}</code></pre>").format(_lines(part))
    return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(Markup(part.svg()), part.title)


def _lines(code: Code) -> Markup:
    if not code.is_diff:
        return escape(code.text)
    return Markup("\n").join(_diff_line(line) for line in code.text.splitlines())


def _diff_line(line: str) -> Markup:
    kind = "" if line.startswith(("+++", "---")) else _DIFF_CLASSES.get(line[:1], "")
    return Markup('<span class="{}">{}</span>').format(kind, line) if kind else escape(line)
