"""The option --fail-if: turns conditions and quantities into sentences and an exit code. Works without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autofuse.results.conditions import Condition, ConditionOutcome, Quantity, check_condition

DONE, FAILS = 0, 1


@dataclass(frozen=True)
class Gate:
    """The conditions of a command line.

    Attributes:
        conditions: The conditions.
        strict: Whether an undecided condition fails too.
    """

    conditions: tuple[Condition, ...] = ()
    strict: bool = False

    def outcomes(self, quantities: Mapping[str, Quantity]) -> tuple[ConditionOutcome, ...]:
        """Returns the outcome of every condition, in order.

        Raises:
            NotACondition: A condition names an unknown quantity.
        """
        return tuple(check_condition(condition, quantities) for condition in self.conditions)

    def exit_code(self, outcomes: Sequence[ConditionOutcome], say: Callable[[str], None]) -> int:
        """Passes a sentence for each outcome to `say`, and returns the exit code."""
        for outcome in outcomes:
            advice = "" if outcome.holds is not None else self._advice()
            say(f"{outcome.sentence}{advice}")
        failing = (True, None) if self.strict else (True,)
        return FAILS if any(outcome.holds in failing for outcome in outcomes) else DONE

    def _advice(self) -> str:
        return " With --strict this fails." if self.strict else " Without --strict this does not fail."
