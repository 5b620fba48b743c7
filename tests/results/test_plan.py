"""A plan as data and as text."""

from __future__ import annotations

import json

import pytest

from autofuse.results.data import Malformed
from autofuse.results.plan import Capacity, Plan, Setting, Side
from autofuse.results.profile import Memory

GIB = 2**30
BEFORE = Side(Memory(12 * GIB, parameters=4 * GIB, activations=8 * GIB), 0.03, {"a": 12 * GIB}, 0, "does not fit", 3)
AFTER = Side(Memory(8 * GIB, parameters=4 * GIB, activations=4 * GIB), 0.13, {"a": 8 * GIB}, 7, "fits", 6)
PLAN = Plan("Model", Setting(4, 128), BEFORE, AFTER, "checked", Capacity(10 * GIB, "Card", "its sheet"))


def test_a_plan_is_unchanged_after_json() -> None:
    assert Plan.from_dict(json.loads(PLAN.to_json())) == PLAN


def test_other_data_is_refused() -> None:
    with pytest.raises(Malformed, match="not a plan"):
        Plan.from_dict({"type": "profile", "version": 1})


def test_every_form_states_that_the_plan_is_simulated_and_its_error() -> None:
    for form in (str(PLAN), PLAN._repr_html_()):
        words = " ".join(form.split())
        assert "Simulated: nothing was run or allocated." in words
        assert "3 % before and 13 % after fusion" in words
        assert "does not fit" in words and "12 GiB" in words and "8 GiB" in words


def test_an_impossible_plan_has_no_numbers_and_a_reason() -> None:
    plan = Plan("Model", Setting(), BEFORE, Side(Memory(), reason="It asks for numbers."), "checked")
    assert plan.saved_bytes is None
    assert "n/a" in str(plan) and "It asks for numbers." in str(plan)
    assert PLAN.saved_bytes == 4 * GIB
