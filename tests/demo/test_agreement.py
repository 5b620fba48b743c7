"""Tests of the bound on the difference of loss curves."""

import math

import pytest

from autofuse.demo.agreement import agreement, gradient_error

EAGER = [4.0, 3.0, 2.0, 1.0]
DRIFTED = [4.0, 3.0 + 1e-4, 2.0 - 1e-3, 1.0 + 1e-4]


def test_equal_curves_agree_even_if_the_control_does_not_drift():
    assert agreement(EAGER, EAGER, EAGER, 1e-6).agrees


def test_a_curve_agrees_while_it_drifts_less_than_the_control():
    assert agreement(EAGER, [4.0, 3.0 - 5e-5, 2.0, 1.0 + 5e-5], DRIFTED, 1e-6).agrees


def test_a_drift_of_the_control_bounds_all_later_steps():
    assert agreement(EAGER, [4.0, 3.0, 2.0, 1.0 + 9e-4], DRIFTED, 1e-6).agrees


def test_a_curve_that_leaves_the_bound_once_does_not_agree():
    verdict = agreement(EAGER, [4.0, 3.0 + 2e-4, 2.0, 1.0], DRIFTED, 1e-6)
    assert not verdict.agrees and verdict.step == 1
    assert "do NOT agree" in verdict.sentence and "step 2" in verdict.sentence


def test_the_bound_may_not_be_used_before_the_control_has_drifted():
    assert not agreement(EAGER, [4.0 + 1e-4, 3.0, 2.0, 1.0], DRIFTED, 1e-6).agrees


def test_a_nan_loss_does_not_agree():
    assert not agreement(EAGER, [4.0, math.nan, 2.0, 1.0], DRIFTED, 1e-6).agrees
    assert not agreement(EAGER, [*EAGER[:3], math.inf], DRIFTED, 1e-6).agrees


def test_empty_curves_and_different_lengths_raise_an_error():
    with pytest.raises(ValueError):
        agreement(EAGER, EAGER[:2], EAGER, 1e-6)
    with pytest.raises(ValueError, match="at least one step"):
        agreement([], [], [], 1e-6)


def test_the_gradient_error_is_the_largest_verified_one_but_at_least_rounding():
    assert gradient_error([1e-5, None, 3e-4]) == 3e-4
    assert gradient_error([None, 0.0]) == gradient_error([]) == 2.0**-23
