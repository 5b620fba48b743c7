"""The charts of a profile show the numbers that belong together, and omit unknown numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autofuse.display import profile_charts as charts
from autofuse.display.bars import BarChart
from autofuse.results.profile_parts import Roof
from tests.display.samples import almost_nothing, gpt, large, trace_of_a_job

ONE, BOTH = {"": gpt()}, {"before": gpt(), "after": gpt(True)}
EMPTY = {"": almost_nothing()}


def test_a_levels_bar_and_its_loss_reach_to_the_level_above() -> None:
    rows = {row.label: row for row in charts.ladder_chart(ONE).rows}
    busy = rows["busy time"].bars[0]
    assert [s.length for s in busy] == pytest.approx([0.941, 0.059])
    hfu = rows["hardware FLOPs utilisation (HFU)"].bars[0]
    assert sum(s.length for s in hfu) == pytest.approx(0.941)
    assert "SM activity" not in rows  # the page names what is not known in one line


def test_before_and_after_have_one_bar_each_even_if_one_is_unknown() -> None:
    sides = {"before": almost_nothing(), "after": gpt()}
    busy = charts.ladder_chart(sides).rows[0]
    assert busy.bars[0] == () and busy.bars[1][0].length == 0.941
    assert busy.value == "n/a → 94.1 %"


def test_bars_of_steps_have_the_proportions_of_their_times() -> None:
    chart = charts.shares_chart(BOTH)
    assert chart is not None
    before, after = (sum(segment.length for segment in row.bars[0]) for row in chart.rows[:2])
    assert before == pytest.approx(1.0)
    assert after == pytest.approx(145 / 254)


def test_known_shares_of_a_trace_without_timed_steps_are_drawn() -> None:
    timing = almost_nothing().timing
    chart = charts.shares_chart({"": replace(gpt(), timing=timing)})
    assert chart is not None and chart.rows[0].value == "254 ms"


def test_memory_is_drawn_against_the_larger_peak() -> None:
    chart = charts.memory_chart(BOTH)
    assert chart is not None
    assert sum(s.length for s in chart.rows[0].bars[0]) == pytest.approx(1.0)
    assert sum(s.length for s in chart.rows[1].bars[0]) == pytest.approx(82 / 202)


def test_layers_have_forward_and_backward_and_their_rules() -> None:
    chart = charts.layers_chart(ONE)
    assert chart is not None
    first = chart.rows[0]
    assert (first.label, first.value, first.note, first.tone) == (
        "h.*.attn ×4",
        "100 ms",
        "AF101 applies: 1.23x",
        "warn",
    )
    assert [s.length for s in first.bars[0]] == pytest.approx([0.36, 0.64])
    both = charts.layers_chart(BOTH)
    assert both is not None and both.rows[0].value == "100 ms → 28.4 ms" and both.rows[0].note == "AF101 fused"


def test_a_layer_that_is_missing_afterwards_leaves_a_gap() -> None:
    after = replace(gpt(True), layers=tuple(found for found in gpt(True).layers if not found.fqn.endswith("ln_1")))
    chart = charts.layers_chart({"before": gpt(), "after": after})
    assert chart is not None
    (row,) = [row for row in chart.rows if row.label == "h.*.ln_1 ×4"]
    assert row.bars[0] and row.bars[1] == () and row.value.endswith("→ n/a")


def test_only_layers_with_flops_bytes_and_time_are_on_the_roofline_plot() -> None:
    chart = charts.roofline_chart(ONE)
    assert chart is not None
    names = {dot.name for dot in chart.dots}
    assert "h.*.attn ×4" in names and "h.*.ln_1 ×4" not in names
    attention = next(dot for dot in chart.dots if dot.name == "h.*.attn ×4")
    assert attention.kind == "warn" and attention.rate == pytest.approx(4 * 0.41e9 / 0.1)
    assert attention.intensity == pytest.approx(0.41e9 / (276 * 2**20))


def test_layers_before_are_pale_and_layers_after_name_their_rules() -> None:
    chart = charts.roofline_chart(BOTH)
    assert chart is not None
    kinds = {dot.kind for dot in chart.dots}
    assert {"lost", "good"} <= kinds and "warn" not in kinds
    assert all(not dot.name for dot in chart.dots if dot.kind == "lost")


def test_the_legend_says_that_no_rule_applies_only_if_rules_were_searched() -> None:
    layers = tuple(replace(found, places=()) for found in gpt().layers)
    chart = charts.roofline_chart({"": replace(gpt(), layers=layers, roof=Roof())})
    assert chart is not None and chart.legend == {}


def test_phases_have_the_same_colours_in_every_chart() -> None:
    timeline = charts.timeline_chart(gpt())
    layers, shares = charts.layers_chart(ONE), charts.shares_chart(ONE)
    assert timeline is not None and isinstance(layers, BarChart) and isinstance(shares, BarChart)
    for chart in (timeline, layers, shares):
        assert chart.legend["part-0"] == "forward" and chart.legend["part-1"] == "backward"
    job = charts.timeline_chart(trace_of_a_job())
    assert job is not None and job.kinds["communication"] == "part-4" and "communication" in job.legend.values()


def test_unknown_values_are_not_drawn() -> None:
    for made in (
        charts.shares_chart, charts.memory_chart, charts.layers_chart, charts.categories_chart, charts.roofline_chart,
        charts.steps_chart, charts.losses_chart,
    ):  # fmt: skip
        assert made(EMPTY) is None, made.__name__
    assert charts.timeline_chart(almost_nothing()) is None


def test_a_deep_model_has_no_more_rows_than_a_shallow_one() -> None:
    deep, shallow = charts.layers_chart({"": large(40)}), charts.layers_chart({"": large(4)})
    assert deep is not None and shallow is not None and len(deep.rows) == len(shallow.rows)
