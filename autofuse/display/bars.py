"""Bar charts as wide as the page, whose labels keep their size on a phone.

This file draws fractions and names, and does not depend on their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

NARROW = 316  # pixels of a chart on a page 360 pixels wide; labels are shortened to fit
_LETTER = 7.2  # pixels of an average letter at 12 px, wide fonts included
_LABEL, _BAR, _EMPTY, _GAP, _NOTE, _ABOVE, _BELOW = 18, 12, 2, 3, 16, 4, 8


@dataclass(frozen=True)
class Segment:
    """A part of a bar. length: a fraction of the axis. kind: a class of the style sheet. title: the tooltip."""

    length: float
    kind: str
    title: str = ""


@dataclass(frozen=True)
class BarRow:
    """A label and a value above one or more bars. A bar without segments is a gap: its value is unknown.

    Attributes:
        note: a pale line below.
        tone: the tone of the note.
        hint: the full label.
        short: the label for narrow pages; "" for the end of the label.
    """

    label: str
    value: str
    bars: tuple[tuple[Segment, ...], ...]
    note: str = ""
    tone: str = "quiet"
    hint: str = ""
    short: str = ""


@dataclass(frozen=True)
class BarChart:
    """Rows from top to bottom. description: the content in one sentence. legend: the meaning of the classes."""

    title: str
    description: str
    rows: tuple[BarRow, ...]
    legend: Mapping[str, str] = field(default_factory=dict)

    def svg(self) -> str:
        """One `<svg>` element without a viewBox: positions along the axis are percentages, so text is never scaled."""
        drawn, top = [], 0
        for row in self.rows:
            text, height = _row(row, top)
            drawn.append(text)
            top += height
        name, described = escape(self.title), escape(self.description)
        head = f'<svg class="bars" height="{top}" role="img" aria-label="{name}">'
        return f"{head}<title>{name}</title><desc>{described}</desc>{''.join(drawn)}</svg>"


def shorten_to(name: str, letters: int) -> str:
    """The name, or its end, because names of modules differ at the end."""
    return name if len(name) <= letters else f"…{name[len(name) - max(1, letters - 1) :]}"


def letters_in(pixels: float) -> int:
    """The number of letters that fit."""
    return max(1, int(pixels / _LETTER))


def _row(row: BarRow, top: int) -> tuple[str, int]:
    top += _ABOVE if any(row.bars) else 0
    room = letters_in(NARROW) - len(row.value) - 1
    label = row.short if row.short and len(row.label) > room else shorten_to(row.label, room)
    parts = [_text_for_both_widths(row.label, label, top + 13, "label", row.hint)]
    parts.append(_text("100%", top + 13, row.value, "end", "value"))
    below = top + _LABEL
    for bar in row.bars:
        parts.append(_bar(bar, below))
        below += (_BAR if bar else _EMPTY) + _GAP
    if row.note:
        parts.append(_text_for_both_widths(row.note, _shorten_end(row.note), below + 11, f"note {row.tone}"))
        below += _NOTE
    return "".join(parts), below - top + (_ABOVE + _BELOW if any(row.bars) else _GAP)


def _text_for_both_widths(text: str, short: str, y: float, kind: str, hint: str = "") -> str:
    """The text, and a short form for narrow pages if needed. The style sheet shows one of them."""
    if text == short:
        return _text(0, y, text, "start", kind, hint)
    return _text(0, y, text, "start", f"{kind} wide", hint) + _text(0, y, short, "start", f"{kind} narrow", text)


def _shorten_end(text: str) -> str:
    room = letters_in(NARROW)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _bar(segments: Sequence[Segment], top: int) -> str:
    if not segments:
        return f'<line class="gap" x1="0" x2="100%" y1="{top + 1}" y2="{top + 1}"/>'
    pieces, start = [f'<rect class="track" x="0" y="{top}" width="100%" height="{_BAR}"/>'], 0.0
    for segment in segments:
        length = min(max(0.0, segment.length), max(0.0, 1.0 - start))
        title = f"<title>{escape(segment.title)}</title>" if segment.title else ""
        place = f'x="{100 * start:.3f}%" y="{top}" width="{100 * length:.3f}%" height="{_BAR}"'
        pieces.append(f'<rect class="fill {segment.kind}" {place}>{title}</rect>')
        start += length
    return "".join(pieces)


def _text(x: float | str, y: float, content: str, anchor: str, kind: str, hint: str = "") -> str:
    title = f"<title>{escape(hint)}</title>" if hint and hint != content else ""
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(content)}{title}</text>'
