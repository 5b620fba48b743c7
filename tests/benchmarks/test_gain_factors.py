"""The packaged table of prediction factors is that of the committed results, and its numbers follow from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autofuse.profiling.live.prediction_factors import classes_from, prediction_classes
from benchmarks import gain_factors
from benchmarks.gain_factors import Kind, classes_of, coverage_of, kinds_of


def row(name: str, *places: tuple[str, float, float, float], tuned: bool = False) -> dict[str, Any]:
    """Places as rule, seconds, predicted and measured saving; two of each."""
    kinds = [
        {"rule": rule, "places": 2, "seconds": 2 * s, "predicted_saving": 2 * p, "measured_saving": 2 * m}
        for rule, s, p, m in places
    ]
    return {"name": name, "tuned": tuned, "step": {"before": 1.0}, "places": kinds}


def test_the_packaged_table_is_computed_from_the_committed_results() -> None:
    results = json.loads(gain_factors.RESULTS.read_text())
    assert json.loads(gain_factors.TABLE.read_text()) == gain_factors.table_of(results)
    assert prediction_classes() == classes_from(gain_factors.table_of(results))


def test_the_factors_rest_on_enough_untuned_models() -> None:
    table = json.loads(gain_factors.TABLE.read_text())
    assert table["untuned_models"] >= 20
    assert table["coverage"]["within_2x"] > table["coverage"]["point"]


def test_places_with_a_negligible_share_are_not_used() -> None:
    kinds = kinds_of([row("a", ("AF1", 0.02, 0.001, 0.002), ("AF2", 0.02, 0.006, 0.003))])
    assert kinds == [Kind("a", False, "AF2", 0.02, 0.006, 0.003)]


def test_a_rule_with_few_kinds_has_no_separate_class_and_sizes_are_separate() -> None:
    kinds = [Kind(str(n), n == 0, "AF1", 0.005, 0.002, 0.002 * n / 10) for n in range(11)]
    kinds += [Kind("x", False, "AF2", 0.5, 0.2, 0.1)]
    kinds += [Kind(str(n), False, f"AF{n}", 0.5, -0.1, 0.05) for n in range(5)]
    found = {(entry.rule, entry.size): entry for entry in classes_of(kinds)}
    assert set(found) == {("", "short"), ("AF1", "short"), ("", "small")}, "one long kind is too few"
    short = found["AF1", "short"]
    assert (short.low, short.middle, short.high) == pytest.approx((0.1, 0.5, 0.9))
    assert (short.kinds, short.models, short.untuned) == (11, 11, 10)
    assert found["", "small"].middle == pytest.approx(0.1)  # of the seconds, whatever was predicted


def test_a_model_is_judged_by_the_others() -> None:
    others = [Kind(str(n), False, "AF1", 0.005, 0.002, 0.001) for n in range(8)]
    odd = Kind("odd", False, "AF1", 0.005, 0.002, 0.0019)
    found = coverage_of([*others, odd])
    assert (found.kinds, found.inside, found.within_2x, found.point) == (9, 8, 9, 9)
    wrong = coverage_of([*others, Kind("odd", False, "AF1", 0.005, 0.002, -0.002)])
    assert (wrong.inside, wrong.within_2x) == (8, 8)
