"""The roofline plot: numbers determine the positions of dots, and names overlap nothing."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.dom.minidom import Element, parseString

import pytest

from autofuse.display.roofline import Dot, RooflineChart
from autofuse.results.profile_parts import Roof

ROOF = Roof(1e12, 1e11, "float32")  # they meet at 10 FLOPs a byte


def plots(*dots: Dot, roof: Roof = ROOF) -> list[Element]:
    made = RooflineChart("Roofline", "told", roof, dots).svg()
    return list(parseString(f"<all>{made}</all>").getElementsByTagName("svg"))


def numbers(element: Element, *names: str) -> list[float]:
    return [float(element.getAttribute(name)) for name in names]


def lines(plot: Element) -> list[list[float]]:
    found = [e for e in plot.getElementsByTagName("line") if "roofline" in e.getAttribute("class")]
    return [numbers(line, "x1", "y1", "x2", "y2") for line in found]


def test_there_is_a_wide_and_a_narrow_drawing_of_the_same_dots() -> None:
    wide, narrow = plots(Dot("a", 1.0, 1e10, 1.0, "x"), Dot("b", 100.0, 1e11, 1.0, "x"))
    assert wide.getAttribute("class") == "plot wide" and narrow.getAttribute("class") == "plot narrow"
    assert len(wide.getElementsByTagName("circle")) == len(narrow.getElementsByTagName("circle")) == 2


def test_a_dot_at_the_bend_is_on_both_roofs() -> None:
    (plot, _) = plots(Dot("bend", 10.0, 1e12, 1.0, "x"))
    (dot,) = plot.getElementsByTagName("circle")
    slope, flat = lines(plot)
    assert slope[2:] == flat[:2] == pytest.approx(numbers(dot, "cx", "cy"), abs=0.2)
    assert flat[1] == flat[3]


def test_ten_times_as_much_is_the_same_distance_everywhere() -> None:
    (plot, _) = plots(*(Dot(str(i), 10.0**i, 10.0 ** (9 + i), 1.0, "x") for i in range(3)))
    xs, ys = zip(*(numbers(dot, "cx", "cy") for dot in plot.getElementsByTagName("circle")), strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)


def test_areas_compare_as_times_do() -> None:
    (plot, _) = plots(Dot("large", 1.0, 1e10, 4.0, "x"), Dot("small", 9.0, 1e9, 1.0, "x"))
    large, small = (float(dot.getAttribute("r")) for dot in plot.getElementsByTagName("circle"))
    assert large == pytest.approx(2 * small)


def test_names_do_not_overlap_in_a_crowd_and_the_longest_layer_is_named() -> None:
    crowd = [Dot(f"layer number {i}", 5.0 + i / 10, 1e11 + i, 20.0 - i, "x") for i in range(20)]
    for plot in plots(*crowd):
        names = [e for e in plot.getElementsByTagName("text") if e.getAttribute("class") == "name"]
        assert "layer number 0" in [name.firstChild.data for name in names]  # type: ignore[union-attr]
        for side in ("start", "middle", "end"):
            heights = sorted(float(n.getAttribute("y")) for n in names if n.getAttribute("text-anchor") == side)
            assert all(b - a > 10 for a, b in pairwise(heights))


@pytest.mark.parametrize(
    ("roof", "count"), [(Roof(), 0), (Roof(flops_per_second=1e12), 1), (Roof(bytes_per_second=1e11), 1), (ROOF, 2)]
)
def test_only_roofs_that_are_known_are_drawn(roof: Roof, count: int) -> None:
    assert len(lines(plots(Dot("a", 1.0, 1e10, 1.0, "x"), roof=roof)[0])) == count


def test_the_cache_has_its_own_slope_below_the_same_compute_roof() -> None:
    roof = Roof(1e12, 1e11, cached_bytes_per_second=1e12)  # the cache's slope reaches the roof at 1 FLOP a byte
    (plot, _) = plots(Dot("a", 0.1, 1e10, 1.0, "x"), roof=roof)
    slope, flat, cache = lines(plot)
    assert flat[0] == pytest.approx(cache[2], abs=0.2) and flat[1] == pytest.approx(cache[3], abs=0.2)
    assert cache[2] < slope[2] and cache[3] == pytest.approx(slope[3], abs=0.2)


def test_everything_stays_within_its_drawing() -> None:
    extremes = (Dot("a", 1e-6, 1e3, 1.0, "x"), Dot("b", 1e6, 1e15, 1.0, "x"))
    for plot in plots(*extremes):
        _, _, width, height = map(float, plot.getAttribute("viewBox").split())
        assert all(0 <= x <= width for line in lines(plot) for x in line[::2])
        assert all(0 <= y <= height for line in lines(plot) for y in line[1::2])
        assert len(re.findall("grid", plot.toxml())) < 30


def test_without_a_dot_there_is_no_plot() -> None:
    with pytest.raises(ValueError, match="'Roofline'"):
        RooflineChart("Roofline", "", ROOF, ()).svg()
