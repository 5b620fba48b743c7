"""The timeline shows proportional bars for any number of spans."""

from __future__ import annotations

from xml.dom.minidom import Element, parseString

import pytest

from autofuse.display.timeline import TimelineChart
from autofuse.results.profile_parts import Span


def svg_of(*spans: Span) -> Element:
    element = parseString(TimelineChart("Step", "told", spans, {"forward": "part-0"}).svg()).documentElement
    assert element is not None
    return element


def bars(element: Element) -> list[Element]:
    return [rect for rect in element.getElementsByTagName("rect") if "fill" in rect.getAttribute("class")]


def test_places_and_lengths_are_shares_of_the_step() -> None:
    first, second = bars(svg_of(Span("phases", "forward", 0.0, 0.3, "forward"), Span("phases", "b", 0.5, 0.5)))
    assert (first.getAttribute("x"), first.getAttribute("width")) == ("0.000%", "30.000%")
    assert (second.getAttribute("x"), second.getAttribute("width")) == ("50.000%", "50.000%")
    assert "part-0" in first.getAttribute("class") and "part-7" in second.getAttribute("class")


def test_lanes_are_in_the_order_of_their_first_span() -> None:
    element = svg_of(Span("GPU stream 7", "mm", 0, 1), Span("phases", "f", 0, 1), Span("GPU stream 7", "mm", 1, 1))
    labels = [t for t in element.getElementsByTagName("text") if t.getAttribute("class") == "label"]
    assert [label.firstChild.data for label in labels] == ["GPU stream 7", "phases"]  # type: ignore[union-attr]
    assert len({bar.getAttribute("y") for bar in bars(element)}) == 2


def test_a_hundred_thousand_kernels_are_merged_into_fewer_bars() -> None:
    element = svg_of(*(Span("s", "k", i * 1e-5, 5e-6, "matmul") for i in range(100_000)))
    assert len(bars(element)) <= 4_100


def test_a_tooltip_shows_the_name_and_the_duration() -> None:
    (bar,) = bars(svg_of(Span("s", "mm <kernel>", 0, 0.002)))
    assert bar.getElementsByTagName("title")[0].firstChild.data == "mm <kernel>, 2 ms"  # type: ignore[union-attr]


def test_without_times_there_is_no_strip_chart() -> None:
    with pytest.raises(ValueError, match="'Step'"):
        svg_of(Span("s", "k", 0.0, 0.0))
