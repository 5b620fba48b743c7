"""Conditions on measured quantities, for which a build may fail, decided with intervals. No torch.

    condition = comparison { "and" comparison }
    comparison = name operator number          operators: < <= > >=
    name       = word | word "[" layers "]"    "layer_share[h.*.attn]"

A measured number has an interval. A comparison holds if it holds for the whole interval, does not hold if it holds for
no part of it, and is undecided if the threshold is within the interval.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autofuse.results.comparison import Interval

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_COMPARISON = re.compile(
    r"\s*([A-Za-z_]\w*(?:\[[^\[\]]*\])?)\s*(>=|<=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
)


class NotACondition(ValueError):
    """A text is not a condition, or has an unknown name; the message says what is possible."""


@dataclass(frozen=True)
class Quantity:
    """A number that a condition may name.

    Attributes:
        value: None if it is unknown. `reason` then says why.
        interval: a 95 % interval or a wider one; None if the number is exact.
        meaning: a description for people.
    """

    meaning: str
    value: float | None = None
    interval: Interval | None = None
    reason: str = ""

    @property
    def ends(self) -> Interval:
        """The interval; that of an exact number has length 0."""
        assert self.value is not None
        return self.interval or Interval(self.value, self.value)

    def __str__(self) -> str:
        if self.value is None:
            return f"not known, because {self.reason}"
        return f"{self.value:.4g}" + (
            f" ({self.interval.low:.4g} to {self.interval.high:.4g})" if self.interval else ""
        )


@dataclass(frozen=True)
class Relation:
    """One comparison of a condition."""

    name: str
    operator: str
    threshold: float

    def holds(self, quantity: Quantity) -> bool | None:
        """Whether it holds for the whole interval; None if it holds for a part of it, or if the value is not known."""
        if quantity.value is None:
            return None
        low, high = (_OPERATORS[self.operator](end, self.threshold) for end in quantity.ends)
        return low if low == high else None


@dataclass(frozen=True)
class Condition:
    """Comparisons that must all hold. text: as it was written."""

    text: str
    comparisons: tuple[Relation, ...]


@dataclass(frozen=True)
class ConditionOutcome:
    """The outcome of a condition. holds: None if it is undecided. sentence: the reason."""

    condition: str
    holds: bool | None
    sentence: str


def condition(text: str) -> Condition:
    """Parses a condition. Raises NotACondition if the text is not one."""
    parts = re.split(r"\band\b(?![^\[]*\])", text)  # not within the brackets: "and" may be a layer's name
    return Condition(text, tuple(_comparison(part, text) for part in parts))


def _comparison(part: str, text: str) -> Relation:
    found = _COMPARISON.fullmatch(part)
    if found is None:
        raise NotACondition(
            f"{text!r} is not a condition. Write a name, one of < <= > >= and a number, as in 'time_ratio>1.02', and "
            "join several with `and`."
        )
    return Relation(found[1], found[2], float(found[3]))


def check_condition(asked: Condition, known: Mapping[str, Quantity]) -> ConditionOutcome:
    """The outcome of a condition.

    Raises:
        NotACondition: It contains a name that is not in `known`.
    """
    for comparison in asked.comparisons:
        if comparison.name not in known:
            raise NotACondition(_no_such_name(comparison.name, known))
    each = [comparison.holds(known[comparison.name]) for comparison in asked.comparisons]
    holds = False if False in each else None if None in each else True
    names = dict.fromkeys(comparison.name for comparison in asked.comparisons)
    values = "; ".join(f"{name} is {known[name]}" for name in names)
    said = {True: "holds", False: "does not hold", None: "is undecided"}[holds]
    return ConditionOutcome(asked.text, holds, f"{asked.text} {said}: {values}.")


def _no_such_name(name: str, known: Mapping[str, Quantity]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"There is no quantity {name}.{hint} There are: {', '.join(known)}."
