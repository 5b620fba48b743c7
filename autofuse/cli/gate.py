"""From conditions and quantities to sentences and an exit code: what --fail-if does. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autofuse.results.conditions import Condition, ConditionOutcome, Quantity, decided

DONE, FAILS = 0, 1


@dataclass(frozen=True)
class Gate:
    """The conditions of a command line. strict: what is undecided fails too."""

    conditions: tuple[Condition, ...] = ()
    strict: bool = False

    def outcomes(self, known: Mapping[str, Quantity]) -> tuple[ConditionOutcome, ...]:
        """Of every condition, in order. Raises NotACondition where one names something that there is not."""
        return tuple(decided(condition, known) for condition in self.conditions)

    def code(self, outcomes: Sequence[ConditionOutcome], say: Callable[[str], None]) -> int:
        """The exit code; each outcome is said, in a sentence."""
        for outcome in outcomes:
            advice = "" if outcome.holds is not None else self._advice()
            say(f"{outcome.sentence}{advice}")
        failing = (True, None) if self.strict else (True,)
        return FAILS if any(outcome.holds in failing for outcome in outcomes) else DONE

    def _advice(self) -> str:
        return " That fails, as --strict asks." if self.strict else " That does not fail; with --strict it would."
