"""The range of a place's saving, from the class of the place."""

from __future__ import annotations

import pytest

from autofuse.profiling.live.prediction_factors import (
    SHORT,
    PredictionClass,
    prediction_classes,
    saving_range,
    size_class_of,
    with_ranges,
)
from autofuse.results.profile import Layer, Place, Work

CLASSES = (
    PredictionClass("", "short", 20, 9, 9, 0.2, 0.4, 0.8),
    PredictionClass("AF2", "short", 9, 9, 9, 0.5, 0.6, 0.7),
    PredictionClass("", "small", 5, 4, 4, -0.1, 0.0, 0.3),
)


def test_a_place_belongs_to_a_size() -> None:
    assert size_class_of(SHORT / 2, SHORT / 4) == "short"
    assert size_class_of(SHORT, SHORT / 4) == "long"
    assert size_class_of(SHORT, -SHORT) == size_class_of(SHORT, 0.0) == "small"


def test_the_class_of_one_rule_precedes_the_class_of_all_rules() -> None:
    assert saving_range("AF2", 0.004, 0.002, CLASSES) == pytest.approx((0.001, 0.0014))
    assert saving_range("AF1", 0.004, 0.002, CLASSES) == pytest.approx((0.0004, 0.0016))


def test_for_a_small_predicted_saving_the_range_is_a_fraction_of_the_seconds() -> None:
    assert saving_range("AF1", 0.004, -0.002, CLASSES) == pytest.approx((-0.0004, 0.0012))


def test_without_such_places_there_is_no_range() -> None:
    assert saving_range("AF1", 0.4, 0.2, CLASSES) is None


def test_layers_get_the_ranges_of_the_packaged_table() -> None:
    places = (Place("AF203", "applies", seconds=0.002, predicted_seconds=0.001), Place("AF203", "declined"))
    (layer,) = with_ranges([Layer("a", "A", 1, Work(), Work(), Work(), Work(), places=places)])
    known, unknown = layer.places
    assert known.saving_range is not None and known.saving_range == saving_range("AF203", 0.002, 0.001)
    assert unknown.saving_range is None
    assert all(entry.low <= entry.middle <= entry.high for entry in prediction_classes())
