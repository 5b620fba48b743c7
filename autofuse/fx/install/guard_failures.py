"""Counts calls in which no variant's guards held, by the guard that failed, and logs each module once.

Nothing here runs while guards hold, or for a module in which nothing was ever fused.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autofuse.fx.install.codegen import Forward, Variant, build_guard_checker
from autofuse.results.sites import Fallback, Ran
from autofuse.torch_private import DisableTorchFunction

NOT_CALLED = (
    "the forward that is called is the one that was installed"  # used if all guards hold and still no variant ran
)
_LOOKS = 16  # calls of one module whose guards are checked one by one; later calls count as the last of these

Asker = Callable[..., list[int]]

_LOG = logging.getLogger("autofuse")


class GuardFailures:
    """The fallbacks of one model: what ran instead of a variant, how often, and why."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, Ran]] = Counter()
        self._looks: Counter[str] = Counter()
        self._last: dict[str, str] = {}  # the guard that failed last
        self._askers: dict[
            tuple[Forward, int], tuple[Variant, Asker]
        ] = {}  # keeps the variant alive, so that its id stays unique
        self._logged: set[str] = set()

    def guard(self, name: str, base: Forward, variants: Sequence[Variant], call: tuple[Any, ...]) -> str:
        """The guard that failed in a call (module, args, kwargs) of the module called `name`, in words; "" if none."""
        if not variants:
            return ""
        if self._looks[name] < _LOOKS:
            self._looks[name] += 1
            self._last[name] = self._find_failed_guard(base, variants, call)
        return self._last[name]

    def _find_failed_guard(self, base: Forward, variants: Sequence[Variant], call: tuple[Any, ...]) -> str:
        module, args, kwargs = call
        failed: list[tuple[Variant, list[int]]] = []
        for variant in variants:
            key = base, id(variant)
            if key not in self._askers:
                self._askers[key] = variant, build_guard_checker(base, variant)
            with DisableTorchFunction():  # the user's modes must not see operations of guards
                failed.append((variant, self._askers[key][1](module, *args, **kwargs)))
        return first_failed_guard(failed)

    def count(self, name: str, guard: str, ran: Ran, why: str) -> None:
        """Count one call in which the module `name` ran something other than a variant."""
        if not guard:
            return
        self._counts[name, guard, ran] += 1
        if ran == "captured anew":
            _LOG.info('%s is captured again: "%s" does not hold.', name or "The model", guard)
        elif name not in self._logged:
            self._logged.add(name)
            what = '%s runs its original forward: "%s" does not hold, and %s. autofuse.report(model) counts such calls.'
            _LOG.warning(what, name or "The model", guard, why)

    def fallbacks(self, names: Sequence[str]) -> Iterator[Fallback]:
        """The counts for these modules, most frequent first."""
        known = set(names)
        for (name, guard, ran), calls in self._counts.most_common():
            if any(n in known for n in name.split(", ")):
                yield Fallback(name, guard, calls, ran)


def first_failed_guard(failed: Sequence[tuple[Variant, list[int]]]) -> str:
    """The first failed test of the variant with the fewest failed tests; "" if all hold."""
    variant, tests = min(failed, key=lambda f: len(f[1]))
    return variant.describe_test(tests[0]) if tests else ""
