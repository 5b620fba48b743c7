"""Properties of patterns: optional steps, mask parameters, and the possible last operations."""

from __future__ import annotations

import pytest

from autofuse.ir.graph import PARAMETER, Graph, Value
from autofuse.loading.registry import load_rules
from autofuse.match.masks import Mask
from autofuse.match.pattern import Bindings, LoadedRule, Pattern

_GRAPH = Graph()
X, BIAS, SCALE = (_GRAPH.value(PARAMETER, data=name) for name in ("x", "bias", "scale"))
ONE, NONE = _GRAPH.const(1.0), _GRAPH.const(None)
EXP = _GRAPH.value("exp", X)
DEFAULTS = {"bias": NONE, "scale": ONE}
STEPS = {
    "a default is added": (_GRAPH.value("add", EXP, BIAS), EXP),
    "a default is added in front": (_GRAPH.value("add", BIAS, EXP), EXP),
    "two defaults are": (_GRAPH.value("add", BIAS, EXP, SCALE), EXP),
    "a step of its own": (_GRAPH.value("mul", EXP, X), None),
    "one input": (EXP, None),
    "nothing but defaults": (_GRAPH.value("add", BIAS, SCALE), None),
    "nothing but a default": (_GRAPH.value("neg", BIAS), None),
    "a number and a default": (_GRAPH.value("add", ONE, BIAS), None),
    "a parameter and a default": (_GRAPH.value("mul", X, SCALE), X),
}


@pytest.mark.parametrize(("step", "inner"), STEPS.values(), ids=STEPS)
def test_a_step_is_optional_if_its_other_inputs_have_defaults(step: Value, inner: Value | None) -> None:
    assert Pattern((step,), DEFAULTS).optional(step) is inner


def test_a_match_may_end_before_an_optional_step() -> None:
    scaled = _GRAPH.value("mul", _GRAPH.value("add", EXP, BIAS), SCALE)
    assert Pattern((X, scaled), DEFAULTS).root is scaled
    assert Pattern((X, scaled), DEFAULTS).root_ops == {"mul", "add", "exp"}
    assert Pattern((scaled,), {"scale": ONE}).root_ops == {"mul", "add"}
    assert Pattern((scaled,), {}).root_ops == {"mul"}
    assert Pattern((), {}).root_ops == frozenset()


def test_a_parameter_may_be_none_if_that_is_its_default() -> None:
    pattern = Pattern((EXP,), DEFAULTS)
    assert [pattern.may_be_none(name) for name in ("bias", "scale", "x")] == [True, False, False]


def test_the_mask_parameters_are_all_inputs_but_the_scores() -> None:
    masked = _GRAPH.value("masked", _GRAPH.value("mul", X, SCALE), BIAS)
    assert Pattern((_GRAPH.value("exp", masked),), {}).masks == {"bias"}
    assert Pattern((masked, EXP), {}).masks == {"bias"}
    assert Pattern((EXP,), {}).masks == frozenset()


def test_only_rules_of_autofuse_ship() -> None:
    rule = load_rules()[0]
    own = type("Own", (rule.rule,), {"__module__": "somebody.rules"})
    assert rule.ships
    assert not LoadedRule(own, rule.pattern, rule.replacement).ships


def test_a_later_binding_keeps_the_earlier_ones() -> None:
    mask = Mask()
    bound = Bindings().with_capture("x", X).with_step(EXP, ONE).across_cast().with_mask(mask, "why")
    more = bound.with_capture("bias", BIAS).with_step(X, NONE).across_cast()
    assert bound == Bindings({"x": X}, {EXP: ONE}, ("why",), mask, 1)
    assert more == Bindings({"x": X, "bias": BIAS}, {EXP: ONE, X: NONE}, ("why",), mask, 2)
    assert more.with_mask(mask, "too").notes == ("why", "too")
    assert more.with_mask(mask, "") == more
