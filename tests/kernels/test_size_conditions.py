"""SizeConditions as texts hold for the same numbers as the expressions."""

from __future__ import annotations

import pytest
import sympy  # type: ignore[import-untyped]

from autofuse.kernels.size_conditions import SizeConditions, size_of

S = sympy.Symbol("s26", integer=True, positive=True)


@pytest.mark.parametrize("expression", [
    sympy.Ne(S, 1), S < 512, sympy.Eq(sympy.Mod(S, 16), 0), sympy.And(S > 2, S < 70), sympy.Max(S, 5) > 6, sympy.true,
], ids=str)  # fmt: skip
@pytest.mark.parametrize("number", [1, 2, 16, 48, 600])
def test_a_text_has_the_value_of_its_expression(expression: sympy.Basic, number: int) -> None:
    text = size_of(expression).text
    assert text is not None
    kept = SizeConditions.from_texts(["s26"], [text])
    assert kept is not None
    assert kept.hold([number]) is bool(expression.subs({S: number}))


def test_a_size_that_occurs_twice_must_be_equal() -> None:
    kept = SizeConditions.from_texts(["s0", 4, "s0*4", "s0"], [])
    assert kept is not None
    assert kept.hold([3, 4, 12, 3])
    assert not kept.hold([3, 4, 12, 2])
    assert not kept.hold([3, 4, 11, 3])
    assert not kept.hold([3, 4, 12])


@pytest.mark.parametrize("text", ["__import__('os')", "s0.real if", "open", "print(s0)", "x"])
def test_a_text_with_an_unknown_name_is_rejected(text: str) -> None:
    assert SizeConditions.from_texts(["s0"], [text]) is None


@pytest.mark.parametrize("value", [True, 1.5, None, ["s0"]])
def test_a_value_that_is_neither_number_nor_text_is_rejected(value: object) -> None:
    assert SizeConditions.from_texts(["s0"], [value]) is None  # type: ignore[list-item]
