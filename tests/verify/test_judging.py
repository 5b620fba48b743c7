"""autofuse.verify.judging: the tensor closest to its bound, the first beyond it, and when random rounding is used."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from autofuse.verify.bounds import Gap, RoundingSpread, rounding_spread
from autofuse.verify.judging import TensorComparison, TensorJudgement, capitalize_first, judge_tensors

UNIT = 2.0**-24
EXACT = torch.linspace(1.0, 2.0, 64, dtype=torch.float64)
ONCE = EXACT.float()


def exact_plus(by: float) -> torch.Tensor:
    return (EXACT * (1 + by)).float()


ROUNDED = rounding_spread(exact_plus(1e-3), ONCE, EXACT)


def test_the_tensor_closest_to_its_bound_is_returned() -> None:
    found = judge_tensors(
        [TensorComparison("a", ONCE, ONCE, EXACT), TensorComparison("b", exact_plus(2**-23), ONCE, EXACT)], UNIT
    )
    assert found.name == "b" and found.gap.within and found.gap.error > 0


def test_no_tensors_count_as_exact() -> None:
    assert judge_tensors([], UNIT) == TensorJudgement("", Gap())


def test_the_first_tensor_beyond_its_bound_ends_the_comparison() -> None:
    def tensors() -> Iterator[TensorComparison]:
        yield TensorComparison("a", exact_plus(1e-3), ONCE, EXACT)
        raise AssertionError("what follows was looked at")

    found = judge_tensors(tensors(), UNIT)
    assert found.name == "a" and not found.gap.within
    assert found.sentence().startswith("a is off by 7.6e-04 of its largest entry; rounding explains ")
    assert " entry in training; " in found.sentence(" in training")


def test_random_rounding_is_used_only_if_a_tensor_exceeds_its_bound_without() -> None:
    asked: list[str] = []

    def rounded(t: TensorComparison) -> list[RoundingSpread]:
        asked.append(t.name)
        return [ROUNDED]

    found = judge_tensors(
        [TensorComparison("a", ONCE, ONCE, EXACT), TensorComparison("b", exact_plus(1e-3), ONCE, EXACT)],
        UNIT,
        rounded=rounded,
    )
    assert asked == ["b"] and found.gap.within


def test_the_spreads_of_a_comparison_count() -> None:
    assert judge_tensors([TensorComparison("a", exact_plus(1e-3), ONCE, EXACT, rounded=(ROUNDED,))], UNIT).gap.within


def test_only_the_share_of_the_originals_error_counts() -> None:
    tensors = [TensorComparison("a", exact_plus(1e-3), exact_plus(1e-3), EXACT)]
    assert judge_tensors(tensors, UNIT).gap.within and not judge_tensors(tensors, UNIT, share=0.1).gap.within


def test_infinite_entries_have_their_own_message() -> None:
    found = judge_tensors([TensorComparison("the result", ONCE / 0, ONCE, EXACT)], UNIT)
    assert (
        math.isinf(found.gap.error)
        and found.sentence() == "the result has infinite or NaN entries where the original's are finite"
    )


def test_only_the_first_letter_is_capitalized() -> None:
    assert capitalize_first("gradient of self.wQ is off.") == "Gradient of self.wQ is off."
    assert capitalize_first("") == ""
