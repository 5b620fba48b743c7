"""Compares predicted savings with measured ones, by class of place, and gives the ranges that follow.

The table is prediction_factors.json. `python -m benchmarks.gain_factors` computes it from predictions and measurements
on a CPU (benchmarks/results/gains.json). Nothing was measured on a GPU, so places on a GPU get no range.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from autofuse.results.comparison import Interval
from autofuse.results.profile import Layer, Place

SHORT = 0.010  # seconds of a place in a step: shorter ones gain less than predicted, because calls have fixed costs
SMALL = 0.1  # predicted saving / seconds: below it, the prediction does not tell how much is saved


@dataclass(frozen=True)
class PredictionClass:
    """Places that were predicted and measured.

    Attributes:
        rule: code of the rule; "" for all rules.
        size: "short" or "long" places, or "small" for places with a small predicted saving.
        kinds, models: number of kinds of places, and of models that have them. untuned: models among these that the
            predictor was not tuned on.
        low, middle, high: 10th percentile, median and 90th percentile of measured / predicted saving. If the size is
            "small": of measured saving / seconds.
    """

    rule: str
    size: str
    kinds: int
    models: int
    untuned: int
    low: float
    middle: float
    high: float


def size_class_of(seconds: float, predicted_saving: float) -> str:
    """The size class of a place or of equal places: `seconds` is the mean of one."""
    if predicted_saving < SMALL * seconds:
        return "small"
    return "short" if seconds < SHORT else "long"


def saving_range(
    rule: str, seconds: float, predicted_saving: float, classes: Sequence[PredictionClass] | None = None
) -> Interval | None:
    """The range of seconds that a place saves, where 8 of 10 such places were; None without such places.

    Args:
        rule: code of the rule.
        seconds: of the original code in a step.
        predicted_saving: seconds.
        classes: the packaged table if None.
    """
    table = prediction_classes() if classes is None else classes
    size = size_class_of(seconds, predicted_saving)
    known = {entry.rule: entry for entry in table if entry.size == size}
    entry = known.get(rule) or known.get("")
    if entry is None:
        return None
    base = seconds if size == "small" else predicted_saving
    return Interval(entry.low * base, entry.high * base)


def with_ranges(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers, each place with the range of what fusing it saves."""
    return tuple(replace(layer, places=tuple(map(_with_range, layer.places))) for layer in layers)


def _with_range(place: Place) -> Place:
    if place.seconds is None or place.predicted_saving is None:
        return place
    return replace(place, saving_range=saving_range(place.rule, place.seconds, place.predicted_saving))


@cache
def prediction_classes() -> tuple[PredictionClass, ...]:
    """The packaged table."""
    return classes_from(json.loads(files(__package__).joinpath("prediction_factors.json").read_text("utf-8")))


def classes_from(data: Mapping[str, Any]) -> tuple[PredictionClass, ...]:
    """The classes of a table as data."""
    return tuple(PredictionClass(**entry) for entry in data["classes"])
