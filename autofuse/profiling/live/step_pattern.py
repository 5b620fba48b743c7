"""Learns where a training step ends from the order of acts, such as optimizer steps or model calls.

One optimizer steps once in a step. Two that take turns (a GAN's) make one step together, and so do five turns of one
and one of the other: the repeated sequence is the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

_PATIENCE = 64  # after so many acts without a repetition, the most frequent actor ends steps


class StepPattern:
    """Decides for each act whether a step ends with it. `changes` counts the decisions that were wrong later."""

    def __init__(self) -> None:
        self.changes = 0
        self._acts: list[Hashable] = []  # acts since the last new actor
        self._first: Hashable = None  # the actor whose act begins every step
        self._known: set[Hashable] = set()
        self._pattern: list[Hashable] = []  # the acts of one step; empty while they are unknown
        self._position = 0  # acts of the current step
        self._only: Hashable = None  # the actor that ends steps if nothing repeats

    def record_act(self, who: Hashable) -> bool:
        """Record an act of `who`, and return whether a step ends with it.

        With a single actor, each act ends a step. With several, the acts must repeat first.
        """
        if who not in self._known:
            self._begin(who)
        elif self._pattern and who != self._pattern[self._position]:
            self._forget_pattern()
        self._acts.append(who)
        if not self._pattern:
            return self._learn(who)
        self._position = (self._position + 1) % len(self._pattern)
        return self._position == 0

    @property
    def pattern(self) -> tuple[Hashable, ...]:
        """The actors of one step, in order; empty while they are unknown."""
        return tuple(self._pattern)

    def _begin(self, who: Hashable) -> None:
        if self._known:
            self.changes += 1
        else:
            self._first = who
        self._known.add(who)
        self._acts, self._only = [], None
        self._pattern, self._position = [who], 0

    def _forget_pattern(self) -> None:
        self.changes += 1
        self._pattern, self._position = [], 0

    def _learn(self, who: Hashable) -> bool:
        if self._only is not None:
            return who == self._only
        if len(self._acts) > _PATIENCE:
            self._only = Counter(self._acts).most_common(1)[0][0]
            return who == self._only
        for period in range(1, len(self._acts) // 2 + 1):
            if self._acts[period:] == self._acts[:-period]:
                start = self._first_act(period)
                self._pattern = self._acts[start : start + period]
                self._position = (len(self._acts) - start) % period
                return self._position == 0
        return False

    def _first_act(self, period: int) -> int:
        """Return where a step begins in the recorded acts: at the actor that began the first step."""
        for i in range(1, period + 1):
            if self._acts[i % period] == self._first != self._acts[i - 1]:
                return i % period
        return 0
