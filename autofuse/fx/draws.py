"""Whether two modules drop out alike: the same rate, and the same scaling of what is kept.

Knows results of runs that drew random numbers; must not know where dropout stands in the modules.

Each of DRAWS runs is summed up in two numbers. If both modules draw from one distribution, all C(2 * DRAWS, DRAWS) ways
in which their numbers interleave are equally likely, whatever the distribution. So the modules are told apart only when
all numbers of one lie above all of the other: a chance of 2 / C(26, 13) = 2e-7 for each number, 4e-7 for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

DRAWS = 13


class Draw(NamedTuple):
    """One run beside the same run without dropout."""

    kept: (
        float  # its projection onto that, as a share of it: 1 on average where what is kept is scaled up by 1 / (1 - p)
    )
    spread: float  # the square of its distance from that, as a share: p / (1 - p) where all entries are dropped alike


def draw(results: Mapping[str, Tensor], still: Mapping[str, Tensor]) -> Draw:
    """The two numbers of a run with these `results`, whose results are `still` without dropout; averages over tensors."""
    found = [_draw(results[n].double().flatten(), still[n].double().flatten()) for n in results if n in still]
    found = [d for d in found if d is not None]
    return Draw(*(sum(numbers) / len(found) for numbers in zip(*found, strict=True))) if found else Draw(1.0, 0.0)


def difference(original: Sequence[Draw], rewritten: Sequence[Draw]) -> str:
    """What tells the two apart, as a sentence; empty where nothing does."""
    kept, spread = ([[d[i] for d in draws] for draws in (original, rewritten)] for i in (0, 1))
    if _apart(*spread):
        return (
            f"Dropout moves the results by {_mean(spread[1]):.2g} of their square where the original moves them by "
            f"{_mean(spread[0]):.2g}: it drops at another rate, or elsewhere."
        )
    if _apart(*kept):
        return (
            f"Dropout leaves {_mean(kept[1]):.2g} of the results on average where the original leaves "
            f"{_mean(kept[0]):.2g}: what it keeps is scaled differently."
        )
    return ""


def _draw(result: Tensor, still: Tensor) -> Draw | None:
    finite = result.isfinite() & still.isfinite()
    result, still = result[finite], still[finite]
    size = still.square().sum().item()
    if size == 0.0:
        return None
    return Draw((result * still).sum().item() / size, (result - still).square().sum().item() / size)


def _apart(one: Sequence[float], other: Sequence[float]) -> bool:
    return max(one) < min(other) or max(other) < min(one)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
