"""Branches that join: steps of one branch, steps of both, and a test that was made before."""

from __future__ import annotations

import pytest

from tests.canonical.recognise.test_rotary import canonical, written

# A branch, and the equivalent code without one.
SAME = {
    "a test that is true": ("if True:\n    x = x * cos\nreturn x", "return x * cos"),
    "a test that is false": ("if False:\n    x = x * cos\nreturn x", "return x"),
    "a test that is one": ("if 1:\n    x = x * cos\nreturn x", "return x * cos"),
    "a test that is the number 0": ("if 0:\n    x = x * cos\nelse:\n    x = x * sin\nreturn x", "return x * sin"),
    "nothing": ("if None:\n    x = x * cos\nreturn x", "return x"),
    "an empty text": ("if '':\n    x = x * cos\nreturn x", "return x"),
    "a text": ("if 'a':\n    x = x * cos\nreturn x", "return x * cos"),
    "not a test that is false": ("if not False:\n    x = x * cos\nreturn x", "return x * cos"),
    "arms that are the same": ("if z:\n    x = x * cos\nelse:\n    x = x * cos\nreturn x", "return x * cos"),
    "what both arms do": (
        "if z:\n    x = cos.softmax(-1)\nelse:\n    x = sin.softmax(-1)\nreturn x",
        "if z:\n    x = cos\nelse:\n    x = sin\nreturn x.softmax(-1)",
    ),
    "a test that is turned round": (
        "if not z:\n    x = cos\nelse:\n    x = sin\nreturn x",
        "if z:\n    x = sin\nelse:\n    x = cos\nreturn x",
    ),
    "dropout in training": (
        "if z:\n    x = torch.dropout(x, 0.5, True)\nreturn x",
        "return torch.dropout(x, 0.5, z)",
    ),
    "scores that are scaled in one arm": (
        "s = x @ cos\nif z:\n    s = s * 2.0\nreturn s",
        "return (x @ cos) * (2.0 if z else 1.0)",
    ),
    "scores that are scaled in the other": (
        "s = x @ cos\nif not z:\n    s = s / 2.0\nreturn s",
        "return (x @ cos) * (1.0 if z else 0.5)",
    ),
    "scores that are scaled already": (
        "s = x @ cos * 0.5\nif z:\n    s = s * sin.shape[0]\nreturn s",
        "return (x @ cos) * 0.5 * (sin.shape[0] if z else 1.0)",
    ),
    "scores that are scaled by a number where there is none": (
        "s = x @ cos\nif z is None:\n    s = s * 2.0\nreturn s",
        "return (x @ cos) * (2.0 if z is None else 1.0)",
    ),
    "what an operation gives is not nothing": ("if x.exp() is None:\n    x = cos\nreturn x", "return x"),
}
# The second test of a name that was changed under the first test.
THERE = {
    "changed": "z = z.exp()",
    "scaled": "z = z * 2.0",
    "cast": "z = z.to(x.dtype)",
    "cut": "z = z[:, None]",
    "cut at the end": "z = z[1:]",
    "given a dimension": "z = z[0, None]",
    "created again": "z = torch.zeros(3)",
    "changed in one of two ways": "z = z.exp() if y else z.tanh()",
}
MAYBE_NOT_THERE = {
    "an element of a container": "z = z[0]",
    "what a function of one's own gives": "z = other(z)",
    "another argument": "z = y",
    "an element in one of two ways": "z = z[0] if y else z.exp()",
    "an element in the other": "z = z.exp() if y else z[0]",
    "what a method gives": "z = z.other()",
    "what is read from a file": "z = torch.load(z)",
    "two of a container": "z = z[0, 1]",
}
# Two programs with different meanings.
APART = {
    "the arms exchanged": (
        "if z:\n    x = cos\nelse:\n    x = sin\nreturn x",
        "if z:\n    x = sin\nelse:\n    x = cos\nreturn x",
    ),
    "over two dimensions": (
        "if z:\n    x = cos.softmax(-1)\nelse:\n    x = sin.softmax(0)\nreturn x",
        "if z:\n    x = cos\nelse:\n    x = sin\nreturn x.softmax(-1)",
    ),
    "scores that are scaled by what may be a tensor where it is given": (
        "s = x @ cos\nif z is not None:\n    s = s * z\nreturn s",
        "return (x @ cos) * (z if z is not None else 1.0)",
    ),
    "scores times a tensor in one arm": (
        "s = x @ cos\nif z:\n    s = s * sin.exp()\nreturn s",
        "return (x @ cos) * (sin.exp() if z else 1.0)",
    ),
    "what is no matrix product, in one arm": (
        "s = x + cos\nif z:\n    s = s * 2.0\nreturn s",
        "return (x + cos) * (2.0 if z else 1.0)",
    ),
    "what is added in one arm": (
        "s = x @ cos\nif z:\n    s = s + 2.0\nreturn s",
        "return (x @ cos) * (2.0 if z else 1.0)",
    ),
    "a test of another value": (
        "if z:\n    x = cos\nelse:\n    x = sin\nif y:\n    x = x.exp()\nreturn x",
        "if z:\n    x = cos.exp()\nelse:\n    x = sin\nreturn x",
    ),
}


@pytest.mark.parametrize(("branched", "straight"), SAME.values(), ids=SAME)
def test_a_branch_is_simplified(branched: str, straight: str) -> None:
    assert written(canonical(branched)[1]) == written(canonical(straight)[1])


@pytest.mark.parametrize(("one", "other"), APART.values(), ids=APART)
def test_programs_with_different_meanings_stay_different(one: str, other: str) -> None:
    assert written(canonical(one)[1]) != written(canonical(other)[1])


def second_test(update: str) -> str:
    """The test of z after it was changed in a branch."""
    _, found = canonical(f"if z is not None:\n    {update}\nif z is not None:\n    x = x + z\nreturn x")
    return written(found.inputs[0])


@pytest.mark.parametrize("update", THERE.values(), ids=THERE)
def test_a_changed_optional_value_is_none_exactly_if_it_was_before(update: str) -> None:
    assert second_test(update) == "is_none(parameter[z])"


@pytest.mark.parametrize("update", MAYBE_NOT_THERE.values(), ids=MAYBE_NOT_THERE)
def test_a_value_that_may_have_become_none_is_tested_again(update: str) -> None:
    assert second_test(update).startswith("is_none(choice(is_none(parameter[z])")


def test_a_known_test_is_not_repeated() -> None:
    before = "if z:\n    x = cos\nelse:\n    x = sin\n"
    arms = [
        written(side)
        for then, otherwise in (("x", "x.exp()"), ("x.exp()", "x"))
        for side in canonical(f"{before}return {then} if z else {otherwise}")[1].inputs[1:]
        if side.op != "exp"
    ]
    assert arms == ["parameter[cos]", "parameter[sin]"]


def test_two_dropouts_stay_two_draws_even_if_both_branches_have_them() -> None:
    drawn = "(torch.dropout(cos, 0.5, True) if z else torch.dropout(sin, 0.5, True))"
    _, found = canonical(f"return torch.cat(({drawn}, {drawn}))")
    one, other = found.inputs[0].inputs
    assert one.op == other.op == "dropout" and one is not other
    assert written(one) == written(other) and one.inputs[0].op == "choice"


def test_dropout_in_training_keeps_its_other_conditions() -> None:
    _, found = canonical("if z.training:\n    x = torch.dropout(x, 0.5, sin)\nreturn x")
    expected = "and(attribute[training](parameter[z]), parameter[sin])"
    assert written(found) == f"dropout(parameter[x], const[0.5], {expected})"
