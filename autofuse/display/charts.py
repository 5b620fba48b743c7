"""Charts as inline SVG. Colours come from the style sheet of the page, for both themes.

This file draws numbers and names, and does not depend on their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 64, 16, 36, 44
_LINE_HEIGHT, _ROW_HEIGHT = 300, 56
_LETTER = 7  # pixels of an average letter at 12 px
_SERIES = 4  # as many as the style sheet has colours for


@dataclass(frozen=True)
class LineChart:
    """Curves over a common axis, e.g. a loss by training step. `series`: a name, and its values at 0, 1, 2, ..."""

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[float]]

    def svg(self) -> str:
        """One `<svg>` element. Later series are dashed, so that overlapping series stay visible.

        Values that are not finite leave a gap.

        Raises:
            ValueError: No value is finite.
        """
        values = [value for line in self.series.values() for value in line if math.isfinite(value)]
        if not values:
            raise ValueError(f"Chart {self.title!r} has no finite value to draw.")
        x = _Scale(0, max(1, *(len(line) - 1 for line in self.series.values()), 1), _LEFT, _WIDTH - _RIGHT)
        y = _Scale(min(values), max(values), _LINE_HEIGHT - _BOTTOM, _TOP)
        lines = (_curve(i % _SERIES, line, x, y) for i, line in enumerate(self.series.values()))
        parts = (_vertical_axis(y, self.y_label), _horizontal_axis(x, self.x_label, _LINE_HEIGHT), *lines)
        return _svg(self.title, _LINE_HEIGHT, (*parts, _legend(list(self.series))))


@dataclass(frozen=True)
class StripChart:
    """Samples as dots on one line each, with a mark at the median, e.g. step times before and after."""

    title: str
    x_label: str
    samples: Mapping[str, Sequence[float]]

    def svg(self) -> str:
        """One `<svg>` element; the axis starts at 0, so that lengths are proportional to the numbers.

        Raises:
            ValueError: A line has no samples, or a sample that is not finite.
        """
        values = [value for line in self.samples.values() for value in line]
        if not all(self.samples.values()) or not values or not all(map(math.isfinite, values)):
            raise ValueError(f"Chart {self.title!r} needs finite samples on every line.")
        height = _TOP + _ROW_HEIGHT * len(self.samples) + _BOTTOM
        left = max(_LEFT, 16 + _LETTER * max(map(len, self.samples)))
        x = _Scale(min(0, *values), max(values), left, _WIDTH - _RIGHT)
        rows = (_strip(i, name, line, x) for i, (name, line) in enumerate(self.samples.items()))
        return _svg(self.title, height, (_horizontal_axis(x, self.x_label, height), *rows))


@dataclass(frozen=True)
class _Scale:
    """Maps values in [low, high] to pixels. Ticks are round numbers within the interval."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = (self.high - self.low) or 1
        return round(self.start + (value - self.low) / span * (self.end - self.start), 1)

    def ticks(self, about: int = 5) -> list[float]:
        step = _round_step((self.high - self.low) / about or 1)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [i * step for i in range(first, last + 1)]


def _round_step(rough: float) -> float:
    """The next of 1, 2, 5, 10, ... that is not smaller than `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _curve(color: int, line: Sequence[float], x: _Scale, y: _Scale) -> str:
    path, pen = [], "M"
    for i, value in enumerate(line):
        if math.isfinite(value):
            path.append(f"{pen}{x(i)} {y(value)}")
        pen = "L" if math.isfinite(value) else "M"
    return f'<path class="line series-{color}" d="{"".join(path)}"/>'


def _strip(row: int, name: str, samples: Sequence[float], x: _Scale) -> str:
    middle = _TOP + _ROW_HEIGHT * row + _ROW_HEIGHT / 2
    label = _text(x.start - 8, middle + 4, name, "end")
    # Dots have fixed vertical offsets, so that equal times stay visible and the chart is reproducible.
    dots = (f'<circle cx="{x(value)}" cy="{middle + (i % 5 - 2) * 5}" r="3"/>' for i, value in enumerate(samples))
    mark = x(median(samples))
    bar = f'<line class="median" x1="{mark}" x2="{mark}" y1="{middle - 20}" y2="{middle + 20}"/>'
    return f'<g class="dots series-{row % _SERIES}">{"".join(dots)}{bar}</g>{label}'


def _vertical_axis(y: _Scale, label: str) -> str:
    ticks = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>'
        + _text(_LEFT - 8, y(tick) + 4, f"{tick:.4g}", "end")
        for tick in y.ticks()
    )
    return ticks + _text(_LEFT, _TOP - 16, label, "start", "label")


def _horizontal_axis(x: _Scale, label: str, height: float) -> str:
    base = height - _BOTTOM
    ticks = "".join(
        f'<line class="grid" x1="{x(tick)}" x2="{x(tick)}" y1="{_TOP}" y2="{base}"/>'
        + _text(x(tick), base + 16, f"{tick:.4g}", "middle")
        for tick in x.ticks(8)
    )
    return ticks + _text(_WIDTH - _RIGHT, height - 8, label, "end", "label")


def _legend(names: Sequence[str]) -> str:
    entries, place = [], float(_WIDTH - _RIGHT)
    for i, name in reversed(list(enumerate(names))):
        entries.append(_text(place, _TOP - 16, name, "end"))
        place -= 8 + _LETTER * len(name)
        entries.append(f'<path class="line series-{i % _SERIES}" d="M{place - 24} {_TOP - 20}h20"/>')
        place -= 40
    return "".join(entries)


def _text(x: float, y: float, content: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(content)}</text>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    name = escape(title)
    head = f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{name}">'
    return f"{head}<title>{name}</title>{''.join(parts)}</svg>"
