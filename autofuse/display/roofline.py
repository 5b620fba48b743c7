"""The roofline plot: the FLOP/s of layers over arithmetic intensity, on logarithmic axes, below the peak rates.

The model is Williams, Waterman and Patterson's (Communications of the ACM 52/4, 2009).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from autofuse.display.bars import shorten_to
from autofuse.results import units
from autofuse.results.profile_parts import Roof

_LETTER, _LINE = 6.8, 14  # pixels of an average letter, and of a line, at 12 px
_LEFT, _RIGHT, _TOP, _BOTTOM = 92, 16, 40, 46
_LABELS = 10
_SIZES = {"wide": (880, 460), "narrow": (320, 380)}  # the page shows one of the two, so that text keeps its size


@dataclass(frozen=True)
class Dot:
    """A layer; with the name "" it has no label.

    intensity: FLOPs per byte; rate: FLOP/s; seconds: its size; kind: a class of the style sheet.
    """

    name: str
    intensity: float
    rate: float
    seconds: float
    kind: str
    title: str = ""


@dataclass(frozen=True)
class RooflineChart:
    """Dots below the known peak rates; the area is the time. The longest layers have labels."""

    title: str
    description: str
    roof: Roof
    dots: tuple[Dot, ...]
    legend: Mapping[str, str] = field(default_factory=dict)

    def svg(self) -> str:
        """Two `<svg>` elements, one for wide pages and one for narrow pages.

        Raises:
            ValueError: There are no dots.
        """
        if not self.dots:
            raise ValueError(f"Chart {self.title!r} has no layer with FLOPs, bytes and time to draw.")
        return "".join(_plot(self, size) for size in _SIZES)


@dataclass(frozen=True)
class _Decades:
    """Maps values to pixels on a logarithmic axis."""

    low: float  # powers of ten
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return round(self.start + (math.log10(value) - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    def ticks(self, most: int) -> list[float]:
        first, last = math.ceil(self.low), math.floor(self.high)
        step = max(1, math.ceil((last - first + 1) / most))
        return [10.0**power for power in range(first, last + 1, step)]


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def is_inside(self, other: _Box) -> bool:
        return (
            self.left >= other.left and self.right <= other.right and self.top >= other.top
            and self.bottom <= other.bottom
        )  # fmt: skip


@dataclass(frozen=True)
class _Roof:
    kind: str
    x1: float
    y1: float
    x2: float
    y2: float

    def svg(self) -> str:
        return f'<line class="{self.kind}" x1="{self.x1}" y1="{self.y1}" x2="{self.x2}" y2="{self.y2}"/>'

    def boxes(self) -> list[_Box]:
        """The boxes that labels must not overlap."""
        steps = 1 + int(max(abs(self.x2 - self.x1), abs(self.y2 - self.y1)) / 4)
        across, down = (self.x2 - self.x1) / steps, (self.y2 - self.y1) / steps
        points = ((self.x1 + across * i, self.y1 + down * i) for i in range(steps + 1))
        return [_Box(px - 1, py - 1, px + 1, py + 1) for px, py in points]


def _plot(chart: RooflineChart, size: str) -> str:
    width, height = _SIZES[size]
    x, y = _axis_scales(chart, width, height)
    frame = _Box(_LEFT, _TOP, width - _RIGHT, height - _BOTTOM)
    dots = sorted(chart.dots, key=lambda dot: -dot.seconds)
    roofs = _roofs(chart.roof, x, y)
    radii = [_radius(dot, dots[0]) for dot in dots]
    circles = [
        f'<circle class="dot {dot.kind}" cx="{x(dot.intensity)}" cy="{y(dot.rate)}" r="{radius}">'
        f"<title>{escape(dot.title or dot.name)}</title></circle>"
        for dot, radius in zip(dots, radii, strict=True)
    ]
    labels = _labels(dots, radii, x, y, frame, [box for roof in roofs for box in roof.boxes()])
    lines = "".join(roof.svg() for roof in roofs)
    name, described = escape(chart.title), escape(chart.description)
    head = f'<svg class="plot {size}" viewBox="0 0 {width} {height}" role="img" aria-label="{name}">'
    axes = _axes(x, y, frame, 4 if size == "narrow" else 9) + _captions(chart.roof, frame)
    return f"{head}<title>{name}</title><desc>{described}</desc>{axes}{lines}{''.join(circles)}{labels}</svg>"


def _axis_scales(chart: RooflineChart, width: int, height: int) -> tuple[_Decades, _Decades]:
    across = [math.log10(dot.intensity) for dot in chart.dots]
    up = [math.log10(dot.rate) for dot in chart.dots]
    if chart.roof.balance:
        across.append(math.log10(chart.roof.balance))
    if chart.roof.flops_per_second:
        up.append(math.log10(chart.roof.flops_per_second))
    elif chart.roof.bytes_per_second:
        up.append(min(across) + math.log10(chart.roof.bytes_per_second))
    horizontal = _Decades(min(across) - 0.5, max(across) + 0.7, _LEFT, width - _RIGHT)
    return horizontal, _Decades(min(up) - 0.4, max(up) + 0.4, height - _BOTTOM, _TOP)


def _radius(dot: Dot, largest: Dot) -> float:
    """The radius of a dot. Its area is proportional to the time, but small dots stay visible."""
    return round(max(3.0, 16 * math.sqrt(dot.seconds / largest.seconds)) if largest.seconds else 4.0, 1)


def _axes(x: _Decades, y: _Decades, frame: _Box, most: int) -> str:
    parts = []
    for tick in x.ticks(most):
        place = x(tick)
        parts.append(f'<line class="grid" x1="{place}" x2="{place}" y1="{frame.top}" y2="{frame.bottom}"/>')
        parts.append(_text(place, frame.bottom + 16, f"{tick:g}", "middle"))
    for tick in y.ticks(8):
        place = y(tick)
        parts.append(f'<line class="grid" x1="{frame.left}" x2="{frame.right}" y1="{place}" y2="{place}"/>')
        parts.append(_text(frame.left - 8, place + 4, units.amount(tick, "FLOP/s"), "end"))
    parts.append(_text(frame.right, frame.bottom + 36, "FLOPs a byte", "end"))
    return "".join(parts)


def _roofs(roof: Roof, x: _Decades, y: _Decades) -> list[_Roof]:
    """The lines of the known rates: memory bandwidth, compute peak, cache bandwidth."""
    lines = [_slope(roof, roof.bytes_per_second, x, y), _flat_roof(roof, x, y)]
    lines.append(_slope(roof, roof.cached_bytes_per_second, x, y, "roofline cache"))
    return [line for line in lines if line]


def _flat_roof(roof: Roof, x: _Decades, y: _Decades) -> _Roof | None:
    if not roof.flops_per_second:
        return None
    fastest = max(roof.bytes_per_second or 0.0, roof.cached_bytes_per_second or 0.0)
    start = max(10**x.low, roof.flops_per_second / fastest if fastest else 0.0)
    level = y(roof.flops_per_second)
    return _Roof("roofline", x(start), level, x(10**x.high), level)


def _slope(roof: Roof, speed: float | None, x: _Decades, y: _Decades, kind: str = "roofline") -> _Roof | None:
    """The FLOP/s that a bandwidth allows, up to the compute peak or the edge of the plot."""
    if not speed:
        return None
    top = min(roof.flops_per_second or math.inf, 10**y.high)
    start, end = max(10**x.low, 10**y.low / speed), min(10**x.high, top / speed)
    return _Roof(kind, x(start), y(start * speed), x(end), y(end * speed)) if start < end else None


def _captions(roof: Roof, frame: _Box) -> str:
    """Labels above the plot, where no dot can be."""
    parts = []
    if roof.bytes_per_second:
        parts.append(_text(2, 14, f"slope: {units.amount(roof.bytes_per_second, 'B/s')}", "start", "roof"))
    if roof.flops_per_second:
        parts.append(_text(frame.right, 14, f"flat: {units.amount(roof.flops_per_second, 'FLOP/s')}", "end", "roof"))
    if roof.cached_bytes_per_second:
        described = f"dashed, from the cache: {units.amount(roof.cached_bytes_per_second, 'B/s')}"
        parts.append(_text(2, 30, described, "start", "roof"))
    return "".join(parts)


def _labels(
    dots: Sequence[Dot], radii: Sequence[float], x: _Decades, y: _Decades, frame: _Box, taken: Sequence[_Box]
) -> str:
    """Labels of the longest layers next to, above or below their dots, if there is room."""
    centres = [(x(dot.intensity), y(dot.rate)) for dot in dots]
    circles = [_Box(cx - r, cy - r, cx + r, cy + r) for (cx, cy), r in zip(centres, radii, strict=True)]
    boxes = list(taken)
    parts: list[str] = []
    for i, dot in enumerate(dots):
        if len(parts) == _LABELS or not dot.name:
            continue
        name = shorten_to(dot.name, 24)
        (cx, cy), r = centres[i], radii[i]
        places = [
            (cx + r + 4, cy + 4, "start"), (cx - r - 4, cy + 4, "end"), (cx, cy - r - 5, "middle"),
            (cx, cy + r + 13, "middle"),
        ]  # fmt: skip
        for px, py, anchor in places:
            box = _label_box(px, py, name, anchor)
            others = [*boxes, *circles[:i], *circles[i + 1 :]]
            if box.is_inside(frame) and not any(box.meets(other) for other in others):
                boxes.append(box)
                parts.append(_text(px, py, name, anchor, "name"))
                break
    return "".join(parts)


def _label_box(x: float, y: float, text: str, anchor: str) -> _Box:
    width = _LETTER * len(text)
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return _Box(left - 2, y - 12, left + width + 2, y - 12 + _LINE + 2)


def _text(x: float, y: float, content: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'
