"""Calls for which no variant of a module held: counted by the guard that failed, and told to the log once.

Nothing here runs while guards hold. A module of which nothing was ever fused is no concern of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autofuse.fx.install.codegen import Forward, Variant, asker_of
from autofuse.results.sites import Fallback, Ran
from autofuse.torch_private import DisableTorchFunction

NOT_CALLED = "the forward that is called is the one that was installed"  # where all guards hold, and yet nothing ran
_LOOKS = 16  # calls of one module whose guards are asked one by one; later ones count as the last of these

Asker = Callable[..., list[int]]

_LOG = logging.getLogger("autofuse")


class GuardFailures:
    """What the modules of one model ran in place of their variants, how often, and why."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, Ran]] = Counter()
        self._looks: Counter[str] = Counter()
        self._last: dict[str, str] = {}  # the guard that failed last
        self._askers: dict[tuple[Forward, int], tuple[Variant, Asker]] = {}  # the variant is kept, so is its id
        self._told: set[str] = set()

    def guard(self, name: str, base: Forward, variants: Sequence[Variant], call: tuple[Any, ...]) -> str:
        """The guard that failed in a call (module, args, kwargs) of the module called `name`, in words; "" if none."""
        if not variants:
            return ""
        if self._looks[name] < _LOOKS:
            self._looks[name] += 1
            self._last[name] = self._asked(base, variants, call)
        return self._last[name]

    def _asked(self, base: Forward, variants: Sequence[Variant], call: tuple[Any, ...]) -> str:
        module, args, kwargs = call
        failed: list[tuple[Variant, list[int]]] = []
        for variant in variants:
            key = base, id(variant)
            if key not in self._askers:
                self._askers[key] = variant, asker_of(base, variant)
            with DisableTorchFunction():  # a mode of the user's hears of the original alone
                failed.append((variant, self._askers[key][1](module, *args, **kwargs)))
        return nearest(failed)

    def count(self, name: str, guard: str, ran: Ran, why: str) -> None:
        """Note that the module called `name` ran something else."""
        if not guard:
            return
        self._counts[name, guard, ran] += 1
        if ran == "captured anew":
            _LOG.info('%s is captured anew: "%s" does not hold.', name or "The model", guard)
        elif name not in self._told:
            self._told.add(name)
            what = '%s runs its original forward: "%s" does not hold, and %s. autofuse.report(model) counts such calls.'
            _LOG.warning(what, name or "The model", guard, why)

    def fallbacks(self, names: Sequence[str]) -> Iterator[Fallback]:
        """The counts for modules of these names, the most frequent first."""
        known = set(names)
        for (name, guard, ran), calls in self._counts.most_common():
            if any(n in known for n in name.split(", ")):
                yield Fallback(name, guard, calls, ran)


def nearest(failed: Sequence[tuple[Variant, list[int]]]) -> str:
    """The first test that failed in the variant of which fewest did; "" where all hold."""
    variant, tests = min(failed, key=lambda f: len(f[1]))
    return variant.words(tests[0]) if tests else ""
