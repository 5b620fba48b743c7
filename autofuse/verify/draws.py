"""Do two computations apply the same dropout? They need the same rate, and the same scaling of the kept entries.

This file handles results of runs with random numbers. It does not know where the dropout is.

For modules, `dropout_difference` compares many runs, with two numbers for each run. If both modules draw from one
distribution, all C(2 * DRAWS, DRAWS) orders of their numbers are equally likely. The modules count as different only if
all numbers of one are greater than all of the other. The probability of that is 2 / C(26, 13) = 2e-7 for each number,
4e-7 for both.

For kernels, `single_run_difference` compares one run, tensor by tensor. It allows more than chance, because kernels of
other packages round a rate to a multiple of 1 / 256.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

DRAWS = 13
_SAME_CHANGE, _SAME_SHARE = 0.1, 0.02  # how much two dropouts may differ beyond chance
_NO_CHANGE = 1e-3  # a change this small is rounding, as in a gradient that dropout does not affect


class DropoutSample(NamedTuple):
    """One run with dropout, compared with the same run without dropout.

    Attributes:
        kept: the projection onto the run without dropout, relative to it. The average is 1 if kept entries are scaled
            by 1 / (1 - p).
        spread: the squared distance from the run without dropout, relative to it. It is about p / (1 - p) if every
            entry may be dropped.
    """

    kept: float
    spread: float


def measure_dropout(results: Mapping[str, Tensor], still: Mapping[str, Tensor]) -> DropoutSample:
    """Compare `results` with the results without dropout, `still`; both numbers are averages over tensors."""
    samples = [_sample(results[n].double().flatten(), still[n].double().flatten()) for n in results if n in still]
    samples = [sample for sample in samples if sample is not None]
    return (
        DropoutSample(*(sum(numbers) / len(samples) for numbers in zip(*samples, strict=True)))
        if samples
        else DropoutSample(1.0, 0.0)
    )


def dropout_difference(original: Iterable[DropoutSample], rewritten: Iterable[DropoutSample], unit: float = 0.0) -> str:
    """Return how the dropout of two modules differs, as a sentence; "" if it does not.

    Takes samples from both in turn until the verdict is certain: DRAWS of each if they differ, few if they agree.

    Args:
        original: samples of the original module.
        rewritten: samples of the rewritten module.
        unit: the unit roundoff of the coarsest dtype in use. Dropout rounds 1 / (1 - p) to its dtype, and a kernel may
            compute in a wider one. So numbers count as equal if they differ by two units or less.
    """
    first, second = list[DropoutSample](), list[DropoutSample]()
    for a, b in itertools.islice(zip(original, rewritten, strict=False), DRAWS):
        first.append(a)
        second.append(b)
        if not any(_are_apart(first, second, i, 2 * unit) for i in (0, 1)):
            return ""
    if _are_apart(first, second, 1, 2 * unit):
        return (
            f"Dropout changes the results by {_mean(second, 1):.2g} of their square (original: {_mean(first, 1):.2g}): "
            f"it drops at another rate, or elsewhere."
        )
    return (
        f"Dropout keeps {_mean(second, 0):.2g} of the results on average (original: {_mean(first, 0):.2g}): "
        f"the kept entries are scaled differently."
    )


def single_run_difference(result: Tensor, usual: Tensor, still: Tensor, unit: float) -> str:
    """Return how the dropout in two tensors differs, as a clause; "" if it does not.

    A wrong rate, a missing 1 / (1 - p) and a missing dropout are found. They change the share of the result without
    dropout, or the size of the change.

    Args:
        result: the tensor of the candidate.
        usual: the tensor of torch's code.
        still: the tensor without dropout.
        unit: the unit roundoff.
    """
    sample, usual_sample = (
        _sample_or_absolute(t.double().flatten(), still.double().flatten()) for t in (result, usual)
    )
    change, own_change = math.sqrt(sample.spread), math.sqrt(usual_sample.spread)
    # One random number may drop several entries of a row, so only rows count as independent.
    chance = 5 / math.sqrt(max(1, still.numel() // still.shape[-1] if still.ndim else 1))
    no_change = max(_NO_CHANGE, 16 * unit)
    same_change = abs(change - own_change) <= (_SAME_CHANGE + chance) * own_change + no_change
    if same_change and abs(sample.kept - usual_sample.kept) <= _SAME_SHARE + chance * own_change + no_change:
        return ""
    return (
        f"changes by {change:.2g} of its size (torch: {own_change:.2g}) and keeps {sample.kept:.2g} of the result "
        f"without dropout (torch: {usual_sample.kept:.2g})"
    )


def _sample_or_absolute(result: Tensor, still: Tensor) -> DropoutSample:
    """Like `_sample`; if the result without dropout is all zeros, the numbers are not relative to it."""
    sample = _sample(result, still)
    size = still.numel() or 1
    return sample or DropoutSample(0.0, (result - still).square().nan_to_num(0.0).sum().item() / size)


def _sample(result: Tensor, still: Tensor) -> DropoutSample | None:
    finite = result.isfinite() & still.isfinite()
    result, still = result[finite], still[finite]
    size = still.square().sum().item()
    if size == 0.0:
        return None
    return DropoutSample((result * still).sum().item() / size, (result - still).square().sum().item() / size)


def _are_apart(first: Sequence[DropoutSample], second: Sequence[DropoutSample], i: int, slack: float) -> bool:
    first_numbers, second_numbers = [d[i] for d in first], [d[i] for d in second]
    return max(first_numbers) + slack < min(second_numbers) or max(second_numbers) + slack < min(first_numbers)


def _mean(draws: Sequence[DropoutSample], i: int) -> float:
    return sum(d[i] for d in draws) / len(draws)
