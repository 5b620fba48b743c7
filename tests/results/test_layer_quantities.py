"""Conditions on layers have the names of the table and sum over a pattern; a misspelt name is an error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autofuse.results import quantities
from autofuse.results.comparison import Estimate, Interval
from autofuse.results.conditions import NotACondition, check_condition, condition
from autofuse.results.difference import BETWEEN_RUNS
from autofuse.results.profile import OUTSIDE
from tests.display.samples import almost_nothing, gpt


def test_a_pattern_sums_the_layers_of_the_table_and_stops_at_a_dot() -> None:
    profile = gpt()
    known = quantities.of_profile(profile)
    alone = [profile.layer(f"h.{i}.attn") for i in range(4)]
    assert known["layer_seconds[h.*.attn]"].value == pytest.approx(sum(layer.seconds for layer in alone))
    assert known["layer_share[h.*.attn]"].value == pytest.approx(sum(layer.share for layer in alone))
    blocks = [profile.layer(f"h.{i}") for i in range(4)]
    assert known["layer_own_seconds[h.*]"].value == pytest.approx(sum(layer.own_seconds for layer in blocks))
    assert known["layer_seconds[]"].value == profile.layer("").seconds
    assert known[f"layer_seconds[{OUTSIDE}]"].value == profile.layer(OUTSIDE).seconds


def test_the_uncertainty_of_a_layer_is_the_difference_between_runs() -> None:
    known = quantities.of_profile(gpt())
    share = known["layer_share[h.*.attn]"].value
    assert share is not None
    assert check_condition(condition(f"layer_share[h.*.attn]>{share / (1 + 2 * BETWEEN_RUNS)}"), known).holds is True
    assert check_condition(condition(f"layer_share[h.*.attn]>{share * (1 - BETWEEN_RUNS / 2)}"), known).holds is None
    assert check_condition(condition(f"layer_share[h.*.attn]>{share * (1 + 2 * BETWEEN_RUNS)}"), known).holds is False


def test_the_interval_of_a_share_is_that_of_the_profile_if_known() -> None:
    profile = gpt()
    layers = tuple(
        replace(layer, share_interval=Interval(layer.share - 0.01, layer.share + 0.02)) for layer in profile.layers
    )
    found = quantities.of_profile(replace(profile, layers=layers))["layer_share[h.*.attn]"]
    assert found.value is not None
    assert found.ends == pytest.approx((found.value - 0.04, found.value + 0.08))


def test_a_ratio_is_at_least_as_uncertain_as_that_of_the_step() -> None:
    wide = quantities.of_both(gpt(), gpt(True), Estimate(1.7, Interval(0.85, 3.4)))["layer_ratio[h.*.attn]"]
    close = quantities.of_both(gpt(), gpt(True), Estimate(1.7, Interval(1.69, 1.71)))["layer_ratio[h.*.attn]"]
    assert wide.value == close.value and wide.value is not None and wide.value < 0.5
    assert wide.ends.high == pytest.approx(2 * wide.value) and close.ends.high == pytest.approx(1.1 * wide.value)


def test_without_a_baseline_a_ratio_is_not_known() -> None:
    outcome = check_condition(condition("layer_ratio[h.*]>1"), quantities.of_profile(gpt()))
    assert outcome.holds is None and "--baseline" in outcome.sentence


def test_a_misspelt_layer_is_an_error_and_a_close_name_is_offered() -> None:
    with pytest.raises(NotACondition, match=r"No layer is named 'h\.0\.atn'.*h\.0\.attn"):
        check_condition(condition("layer_share[h.0.atn]>0.1"), quantities.of_profile(gpt()))
    with pytest.raises(NotACondition, match=r"layer_share\[LAYER\]"):
        check_condition(condition("layer_shar[h.0]>0.1"), quantities.of_profile(gpt()))


def test_a_profile_without_layers_leaves_the_condition_undecided() -> None:
    assert check_condition(condition("layer_share[h.0]>0.1"), quantities.of_profile(almost_nothing())).holds is None
