"""Charts are well-formed SVG and show the numbers."""

from __future__ import annotations

import math
import re
from xml.dom.minidom import Document, Element, parseString

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofuse.display.charts import LineChart, StripChart


def parse_svg(svg: str) -> Document:
    return parseString(svg)


def with_class(document: Document, name: str) -> list[Element]:
    elements = document.getElementsByTagName("*")
    return [element for element in elements if name in element.getAttribute("class").split()]


def points(path: Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.-]+) ([\d.-]+)", path.getAttribute("d"))]


def curve(*values: float) -> Element:
    document = parse_svg(LineChart("Loss", "step", "loss", {"eager": values}).svg())
    return with_class(document, "line")[0]


def test_a_falling_loss_falls_on_the_page() -> None:
    heights = [y for _, y in points(curve(3.0, 2.0, 1.0))]
    assert heights == sorted(heights)


def test_equal_curves_lie_on_each_other() -> None:
    svg = LineChart("Loss", "step", "loss", {"eager": [3.0, 1.0], "optimized": [3.0, 1.0]}).svg()
    first, second = with_class(parse_svg(svg), "line")[:2]
    assert first.getAttribute("d") == second.getAttribute("d")
    assert first.getAttribute("class") != second.getAttribute("class")


def test_a_value_that_is_not_finite_leaves_a_gap() -> None:
    path = curve(1.0, math.nan, 3.0, 4.0).getAttribute("d")
    assert path.count("M") == 2 and path.count("L") == 1


def test_a_chart_has_curves_labels_and_names() -> None:
    svg = LineChart("Loss <train>", "step", "nats", {"a & b": [1.0, 2.0]}).svg()
    document = parse_svg(svg)
    texts = [text.firstChild.data for text in document.getElementsByTagName("text")]
    assert {"step", "nats", "a & b"} <= set(texts)
    assert document.documentElement.getAttribute("aria-label") == "Loss <train>"


def test_every_sample_is_a_dot_and_the_median_has_a_mark() -> None:
    document = parse_svg(StripChart("Step time", "ms", {"before": [12.0, 13.0, 14.0], "after": [8.0, 9.0]}).svg())
    assert len(document.getElementsByTagName("circle")) == 5
    assert len(with_class(document, "median")) == 2


def test_the_axis_of_times_begins_at_zero() -> None:
    document = parse_svg(StripChart("Step time", "ms", {"before": [10.0], "after": [5.0]}).svg())
    before, after = (float(mark.getAttribute("x1")) for mark in with_class(document, "median"))
    start = 64
    assert (before - start) == pytest.approx(2 * (after - start))


@pytest.mark.parametrize(
    "chart",
    [
        LineChart("empty", "x", "y", {}),
        LineChart("nothing finite", "x", "y", {"a": [math.nan]}),
        StripChart("empty", "x", {}),
        StripChart("an empty line", "x", {"a": [1.0], "b": []}),
        StripChart("infinite", "x", {"a": [math.inf]}),
    ],
)
def test_the_error_names_the_values_that_cannot_be_drawn(chart: LineChart | StripChart) -> None:
    with pytest.raises(ValueError, match=repr(chart.title)):
        chart.svg()


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=30))
def test_every_curve_stays_on_the_page(values: list[float]) -> None:
    document = parse_svg(LineChart("any", "x", "y", {"a": values}).svg())
    _, _, width, height = map(float, document.documentElement.getAttribute("viewBox").split())
    drawn = points(with_class(document, "line")[0])
    assert len(drawn) == len(values)
    assert all(0 <= x <= width and 0 <= y <= height for x, y in drawn)


@given(st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=30))
def test_every_axis_has_a_few_round_ticks(values: list[float]) -> None:
    document = parse_svg(StripChart("any", "x", {"a": values}).svg())
    assert 1 <= len(with_class(document, "grid")) <= 12
