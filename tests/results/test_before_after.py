"""The savings of places, from layers before and after, compared with calculations by hand."""

import json

import pytest

from autofuse.results.before_after import BeforeAfter, with_measured_savings
from autofuse.results.comparison import Comparison, Estimate, Interval
from autofuse.results.profile import Layer, Place, Profile, Timing, Work

AT = {"file": "gpt.py", "line": 7}


def layer(name, seconds, *places):
    return Layer(name, "", 1, Work(), Work(), Work(seconds), Work(), places=places)


def profile(*layers):
    return Profile("gpt", Timing((1.0,), Interval(1.0, 1.0)), (), layers)


def place(rule="AF101", status="applies", seconds=8.0, predicted=4.0, layers=("attn",), **named):
    return Place(rule, status, seconds=seconds, predicted_seconds=predicted, layers=layers, **AT, **named)


def places(before, after, now, then):
    return [p for one in with_measured_savings(before, after, now, then)[0].layers for p in one.places]


def test_the_saving_of_a_place_is_the_difference_of_its_layers():
    before = profile(layer("attn", 10.0, place()))
    after = profile(layer("attn", 99.0, place(status="fused")))
    (found,) = places(before, after, {"attn": 10.0}, {"attn": 5.0})
    assert found.status == "fused" and found.measured_saving == 5 and found.predicted_saving == 4


def test_interleaved_seconds_are_scaled_to_the_seconds_of_the_profile():
    before = profile(layer("attn", 10.0, place()))
    after = profile(layer("attn", 1.0, place(status="fused")))
    (found,) = places(before, after, {"attn": 20.0}, {"attn": 10.0})  # the machine was half as fast meanwhile
    assert found.measured_saving == 5


def test_children_that_are_no_longer_called_count_with_their_parent():
    both = place("AF304", layers=("mlp", "mlp.up", "mlp.down"))
    before = profile(layer("mlp", 1.0, both), layer("mlp.up", 4.0), layer("mlp.down", 5.0))
    after = profile(layer("mlp", 7.0, place("AF304", "fused")))
    (found,) = places(before, after, {"mlp": 1.0, "mlp.up": 4.0, "mlp.down": 5.0}, {"mlp": 7.0})
    assert found.measured_saving == pytest.approx(3)


def test_places_that_share_a_layer_divide_its_saving_by_their_predictions():
    first, second = place("AF101", predicted=2.0), place("AF401", seconds=4.0, predicted=2.0)
    before = profile(layer("attn", 12.0, first, second))
    after = profile(layer("attn", 4.0, place("AF101", "fused"), place("AF401", "fused")))
    found = places(before, after, {"attn": 12.0}, {"attn": 4.0})
    assert [p.measured_saving for p in found] == [6, 2]


def test_a_place_that_was_not_fused_has_no_measurement_and_a_reason():
    before = profile(layer("attn", 10.0, place()))
    after = profile(layer("attn", 10.0, Place("AF101", "declined", "measured here, the original stays", **AT)))
    (found,) = places(before, after, {"attn": 10.0}, {"attn": 10.0})
    assert found.status == "declined" and "the original stays" in found.reason and found.measured_seconds is None


def test_a_part_of_a_larger_place_has_no_separate_measurement():
    part = place("AF301", part_of="AF304 in mlp", layers=("mlp.act",))
    before = profile(layer("mlp.act", 8.0, part))
    (found,) = places(before, profile(layer("mlp.act", 0.0, place("AF301", "fused"))), {"mlp.act": 8.0}, {})
    assert found.status == "fused" and found.measured_seconds is None


def test_the_profile_after_has_the_same_places():
    before = profile(layer("attn", 10.0, place()))
    after = profile(layer("attn", 5.0, place(status="fused", seconds=None, predicted=None)))
    kept = with_measured_savings(before, after, {"attn": 10.0}, {"attn": 5.0})[1]
    assert kept.layers[0].places[0].measured_saving == 5


def test_it_is_json_with_both_profiles_and_the_comparison():
    estimate = Estimate(2.0, Interval(1.9, 2.1))
    comparison = Comparison(2.0, estimate.interval, estimate, "confirmed", "", (2.0,), (1.0,))
    data = json.loads(BeforeAfter(profile(layer("attn", 1.0)), profile(), comparison).to_json())
    assert data["type"] == "before-after" and data["comparison"]["ratio"] == 2
    assert Profile.from_dict(data["before"]).layers[0].fqn == "attn"
