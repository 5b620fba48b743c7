"""Bars: lengths are proportional to the numbers, and labels fit into narrow pages."""

from __future__ import annotations

from itertools import pairwise
from xml.dom.minidom import Element, parseString

from autofuse.display.bars import NARROW, BarChart, BarRow, Segment, letters_in, shorten_to


def svg_of(*rows: BarRow) -> Element:
    element = parseString(BarChart("Title & more", "told <so>", rows).svg()).documentElement
    assert element is not None
    return element


def of_class(element: Element, name: str) -> list[Element]:
    every = element.getElementsByTagName("*")
    return [found for found in every if name in found.getAttribute("class").split()]


def test_segments_have_the_length_of_their_fraction_and_follow_each_other() -> None:
    pieces = of_class(svg_of(BarRow("a", "1", ((Segment(0.25, "x"), Segment(0.5, "y")),))), "fill")
    assert [(p.getAttribute("x"), p.getAttribute("width")) for p in pieces] == [
        ("0.000%", "25.000%"), ("25.000%", "50.000%"),
    ]  # fmt: skip


def test_a_bar_never_leaves_its_axis() -> None:
    pieces = of_class(svg_of(BarRow("a", "1", ((Segment(0.9, "x"), Segment(0.9, "y"), Segment(-1, "z")),))), "fill")
    assert [p.getAttribute("width") for p in pieces] == ["90.000%", "10.000%", "0.000%"]


def test_an_unknown_value_is_a_gap_and_not_a_bar_of_length_zero() -> None:
    element = svg_of(BarRow("a", "n/a", ((),)), BarRow("b", "0 %", ((Segment(0.0, "x"),),)))
    assert len(of_class(element, "gap")) == 1
    assert len(of_class(element, "fill")) == 1


def test_rows_follow_each_other_without_touching() -> None:
    element = svg_of(*(BarRow(f"row {i}", "1", ((Segment(1, "x"),),), "note" if i % 2 else "") for i in range(6)))
    lines = sorted(float(text.getAttribute("y")) for text in of_class(element, "label"))
    assert all(after - before >= 30 for before, after in pairwise(lines))
    assert float(element.getAttribute("height")) > lines[-1] + 15


def test_a_wide_page_shows_a_long_label_completely_and_a_narrow_page_its_end() -> None:
    name = "model.decoder.layers.*.self_attention.output_projection ×48"
    wide, narrow = of_class(svg_of(BarRow(name, "100 ms → 28.4 ms", ((),))), "label")
    assert wide.getAttribute("class").endswith("wide") and wide.firstChild.data == name  # type: ignore[union-attr]
    short = narrow.firstChild.data  # type: ignore[union-attr]
    assert name.endswith(short.lstrip("…")) and short.startswith("…")
    assert len(short) + len("100 ms → 28.4 ms") < letters_in(NARROW)


def test_a_label_uses_its_short_form_if_there_is_little_room() -> None:
    long = BarRow("model FLOPs utilisation (MFU)", "17.1 % → 27.4 %", ((),), short="MFU")
    assert [t.firstChild.data for t in of_class(svg_of(long), "narrow")] == ["MFU"]  # type: ignore[union-attr]
    fits = BarRow("model FLOPs utilisation (MFU)", "17.1 %", ((),), short="MFU")
    assert of_class(svg_of(fits), "narrow") == []


def test_the_end_of_a_name_is_kept() -> None:
    assert shorten_to("abcdef", 6) == "abcdef"
    assert shorten_to("abcdef", 4) == "…def"


def test_a_chart_has_a_title_and_a_description_for_screen_readers() -> None:
    element = svg_of(BarRow("a", "1", ((),)))
    assert element.getAttribute("role") == "img" and element.getAttribute("aria-label") == "Title & more"
    assert element.getElementsByTagName("desc")[0].firstChild.data == "told <so>"  # type: ignore[union-attr]
