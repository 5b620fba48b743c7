"""autofuse.verify.judging: who comes nearest, who is beyond, and when random rounding is asked."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from autofuse.verify.bounds import Gap, RoundingSpread, spread_of
from autofuse.verify.judging import Compared, Judged, capital, judged

UNIT = 2.0**-24
EXACT = torch.linspace(1.0, 2.0, 64, dtype=torch.float64)
ONCE = EXACT.float()


def off(by: float) -> torch.Tensor:
    return (EXACT * (1 + by)).float()


ROUNDED = spread_of(off(1e-3), ONCE, EXACT)


def test_the_one_nearest_to_its_bound_is_told() -> None:
    found = judged([Compared("a", ONCE, ONCE, EXACT), Compared("b", off(2**-23), ONCE, EXACT)], UNIT)
    assert found.name == "b" and found.gap.within and found.gap.error > 0


def test_nothing_to_compare_is_exact() -> None:
    assert judged([], UNIT) == Judged("", Gap())


def test_the_first_that_is_beyond_its_bound_ends_it() -> None:
    def tensors() -> Iterator[Compared]:
        yield Compared("a", off(1e-3), ONCE, EXACT)
        raise AssertionError("what follows was looked at")

    found = judged(tensors(), UNIT)
    assert found.name == "a" and not found.gap.within
    assert found.sentence().startswith("a is off by 7.6e-04 of its largest entry; rounding explains ")
    assert " entry in training; " in found.sentence(" in training")


def test_random_rounding_is_asked_only_where_a_tensor_is_beyond_its_bound_without() -> None:
    asked: list[str] = []

    def rounded(t: Compared) -> list[RoundingSpread]:
        asked.append(t.name)
        return [ROUNDED]

    found = judged([Compared("a", ONCE, ONCE, EXACT), Compared("b", off(1e-3), ONCE, EXACT)], UNIT, rounded=rounded)
    assert asked == ["b"] and found.gap.within


def test_rounding_that_comes_with_a_tensor_counts() -> None:
    assert judged([Compared("a", off(1e-3), ONCE, EXACT, rounded=(ROUNDED,))], UNIT).gap.within


def test_less_of_the_originals_own_error_counts_where_only_a_share_of_it_is_allowed() -> None:
    tensors = [Compared("a", off(1e-3), off(1e-3), EXACT)]
    assert judged(tensors, UNIT).gap.within and not judged(tensors, UNIT, share=0.1).gap.within


def test_what_is_not_finite_is_said_so() -> None:
    found = judged([Compared("the result", ONCE / 0, ONCE, EXACT)], UNIT)
    assert math.isinf(found.gap.error) and found.sentence() == "the result is not finite where the original is"


def test_a_sentence_gets_its_capital_letter_and_keeps_the_rest() -> None:
    assert capital("gradient of self.wQ is off.") == "Gradient of self.wQ is off."
    assert capital("") == ""
