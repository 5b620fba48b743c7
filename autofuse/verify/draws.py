"""Whether two computations drop out alike: the same rate, and the same scaling of what is kept.

Knows results of runs that drew random numbers; must not know where dropout stands in what was run.

Modules are told apart by many runs (`difference`), each summed up in two numbers. If both modules draw from one
distribution, all C(2 * DRAWS, DRAWS) ways in which their numbers interleave are equally likely, whatever the
distribution. So the modules are told apart only when all numbers of one lie above all of the other: a chance of
2 / C(26, 13) = 2e-7 for each number, 4e-7 for both.

A kernel is told apart by one run (`difference_at_once`), tensor by tensor, with an allowance beyond chance: kernels of
other packages round a rate to a multiple of 1 / 256.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

DRAWS = 13
_SAME_CHANGE, _SAME_SHARE = 0.1, 0.02  # what two dropouts may differ by beyond chance, for numbers are finite
_NOTHING = 1e-3  # a change that is no more than rounding, as that of a gradient which dropout does not reach


class Draw(NamedTuple):
    """One run beside the same run without dropout."""

    kept: (
        float  # its projection onto that, as a share of it: 1 on average where what is kept is scaled up by 1 / (1 - p)
    )
    spread: float  # its squared distance from that, as a share: about p / (1 - p) if every entry may drop


def draw(results: Mapping[str, Tensor], still: Mapping[str, Tensor]) -> Draw:
    """The two numbers of a run with these `results`, which are `still` without dropout: averages over tensors."""
    found = [_draw(results[n].double().flatten(), still[n].double().flatten()) for n in results if n in still]
    found = [d for d in found if d is not None]
    return Draw(*(sum(numbers) / len(found) for numbers in zip(*found, strict=True))) if found else Draw(1.0, 0.0)


def difference(original: Iterable[Draw], rewritten: Iterable[Draw], unit: float = 0.0) -> str:
    """What tells the two apart, as a sentence; empty where nothing does.

    unit: the unit of rounding of the coarsest dtype on the way. 1 / (1 - p) is rounded to it where dropout runs in that
    dtype, and is not where a kernel computes wider: numbers that lie no more than two units apart count as equal.

    Takes draws from both in turn until the verdict stands, and no more than that: DRAWS of each to tell them apart, few
    where they are alike.
    """
    one, other = list[Draw](), list[Draw]()
    for a, b in itertools.islice(zip(original, rewritten, strict=False), DRAWS):
        one.append(a)
        other.append(b)
        if not any(_apart(one, other, i, 2 * unit) for i in (0, 1)):
            return ""
    if _apart(one, other, 1, 2 * unit):
        return (
            f"Dropout moves the results by {_mean(other, 1):.2g} of their square where the original moves them by "
            f"{_mean(one, 1):.2g}: it drops at another rate, or elsewhere."
        )
    return (
        f"Dropout leaves {_mean(other, 0):.2g} of the results on average where the original leaves "
        f"{_mean(one, 0):.2g}: what it keeps is scaled differently."
    )


def difference_at_once(result: Tensor, usual: Tensor, still: Tensor, unit: float) -> str:
    """What tells two runs' tensors apart, as a clause; "" where nothing does. `still` is the tensor without dropout.

    What a wrong rate, a missing 1 / (1 - p) or no dropout at all looks like: the result without dropout shows in it by
    another factor, or what dropout changes is of another size. unit: the unit of rounding.
    """
    found, own = (_one(t.double().flatten(), still.double().flatten()) for t in (result, usual))
    change, own_change = math.sqrt(found.spread), math.sqrt(own.spread)
    # Entries of a row may go by the same draws, so only rows count as independent of each other.
    chance = 5 / math.sqrt(max(1, still.numel() // still.shape[-1] if still.ndim else 1))
    nothing = max(_NOTHING, 16 * unit)
    alike = abs(change - own_change) <= (_SAME_CHANGE + chance) * own_change + nothing
    if alike and abs(found.kept - own.kept) <= _SAME_SHARE + chance * own_change + nothing:
        return ""
    return (
        f"changes by {change:.2g} of itself where torch's does by {own_change:.2g}, around {found.kept:.2g} of what it "
        f"is without it where torch's is around {own.kept:.2g}"
    )


def _one(result: Tensor, still: Tensor) -> Draw:
    """As `_draw`; beside nothing but zeros, what came is measured as it is."""
    beside = _draw(result, still)
    size = still.numel() or 1
    return beside or Draw(0.0, (result - still).square().nan_to_num(0.0).sum().item() / size)


def _draw(result: Tensor, still: Tensor) -> Draw | None:
    finite = result.isfinite() & still.isfinite()
    result, still = result[finite], still[finite]
    size = still.square().sum().item()
    if size == 0.0:
        return None
    return Draw((result * still).sum().item() / size, (result - still).square().sum().item() / size)


def _apart(one: Sequence[Draw], other: Sequence[Draw], i: int, slack: float) -> bool:
    a, b = [d[i] for d in one], [d[i] for d in other]
    return max(a) + slack < min(b) or max(b) + slack < min(a)


def _mean(draws: Sequence[Draw], i: int) -> float:
    return sum(d[i] for d in draws) / len(draws)
