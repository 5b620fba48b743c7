"""The timeline of one step: what ran when, in lanes. This file does not depend on the source of the spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from autofuse.display.bars import NARROW, letters_in, shorten_to
from autofuse.results import units
from autofuse.results.profile_parts import Span

_LABEL, _BAR, _BELOW, _AXIS = 18, 18, 8, 20
_FINE = 2000  # the axis has this many pieces; spans with the same first and last piece look the same


@dataclass(frozen=True)
class TimelineChart:
    """Spans as bars in lanes, in the order of their first spans. kinds: the class of each kind."""

    title: str
    description: str
    spans: tuple[Span, ...]
    kinds: Mapping[str, str]
    legend: Mapping[str, str] = field(default_factory=dict)
    zooms: bool = True

    def svg(self) -> str:
        """One `<svg>` element as wide as the page.

        Raises:
            ValueError: No span takes time.
        """
        end = max((span.start + span.seconds for span in self.spans), default=0.0)
        if not end > 0:
            raise ValueError(f"Chart {self.title!r} has no span that takes time.")
        lanes: dict[str, list[Span]] = {}
        for span in self.spans:
            lanes.setdefault(span.lane, []).append(span)
        height = len(lanes) * (_LABEL + _BAR + _BELOW) + _AXIS
        drawn = (self._lane(i, name, spans, end) for i, (name, spans) in enumerate(lanes.items()))
        name, described = escape(self.title), escape(self.description)
        head = f'<svg class="bars" height="{height}" role="img" aria-label="{name}">'
        return f"{head}<title>{name}</title><desc>{described}</desc>{''.join(drawn)}{_axis(end, height)}</svg>"

    def _lane(self, row: int, name: str, spans: Sequence[Span], end: float) -> str:
        top = row * (_LABEL + _BAR + _BELOW)
        label = f'<text class="label" x="0" y="{top + 13}">{escape(shorten_to(name, letters_in(NARROW)))}</text>'
        track = f'<rect class="track" x="0" y="{top + _LABEL}" width="100%" height="{_BAR}"/>'
        return label + track + "".join(self._span(span, top + _LABEL, end) for span in _visible_spans(spans, end))

    def _span(self, span: Span, top: float, end: float) -> str:
        start, length = 100 * max(0.0, span.start) / end, 100 * span.seconds / end
        title = escape(f"{span.name}, {units.duration(span.seconds)}")
        kind = self.kinds.get(span.kind or span.name, "part-7")
        place = f'x="{start:.3f}%" y="{top}" width="{length:.3f}%" height="{_BAR}"'
        return f'<rect class="fill {kind}" {place}><title>{title}</title></rect>'


def _visible_spans(spans: Sequence[Span], end: float) -> list[Span]:
    """The spans without those that another span of their kind covers. A trace may have a hundred thousand."""
    seen: dict[tuple[int, int, str], Span] = {}
    for span in spans:
        place = (int(_FINE * span.start / end), int(_FINE * (span.start + span.seconds) / end), span.kind)
        seen.setdefault(place, span)
    return list(seen.values())


def _axis(end: float, height: float) -> str:
    ends = (("0%", "start", "0"), ("50%", "middle", units.duration(end / 2)), ("100%", "end", units.duration(end)))
    return "".join(
        f'<text class="tick" x="{x}" y="{height - 4}" text-anchor="{anchor}">{escape(text)}</text>'
        for x, anchor, text in ends
    )
