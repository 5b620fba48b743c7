"""Checks plans on copies before they are installed: site by site where a module fails, and the model as a whole.

Knows how to make the copies and whom to blame; verify/modules.py judges.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from torch import nn

from autofuse.display.progress import Tell
from autofuse.fx.rewrite.module_plan import Found
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.memory_room import UNCHECKED, room_to_check
from autofuse.fx.session.planner import Planner, Plans
from autofuse.fx.session.state import Exclusions
from autofuse.fx.session.trials import ForwardTrial
from autofuse.fx.trace.module_calls import Calls
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.verify.modules import Verification

Verdicts = dict[nn.Module, "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """How far a module's rewritten forward may differ from the original; the sites that had to go, and why."""

    max_error: float | None = None
    failed: tuple[tuple[Found, Reason], ...] = ()
    size: str = ""  # the part of the call that was checked in double, "" for all of it


class Checker:
    """Remembers verdicts, so that equal layers are checked once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Verdict] = {}

    def check(self, planner: Planner, real: Calls, tell: Tell) -> Verdicts:
        """A verdict for each module that gained something; a plan that fails is made again without what fails."""
        verdicts: Verdicts = {}
        modules = dict.fromkeys(m for m, _ in planner.plans)
        for module in tell("checking", list(modules), len(modules)):
            plans = planner.whole(module)
            if not any(p.variant for p in plans.values()):
                continue
            key = _key(planner, module, plans)
            if key not in self._known and module not in real:
                continue  # nobody knows how it is called, nor is it equal to one that was checked
            if key not in self._known:
                self._known[key] = self._judged_or_failed(planner, module, real[module])
            elif self._known[key].failed:
                planner.plan_again(module, _without(planner, module, self._known[key]))
            verdicts[module] = self._known[key]
            for child in planner.narrowed(plans.values()):
                verdicts.setdefault(child, replace(self._known[key], failed=()))
        return verdicts

    def check_part(
        self, planner: Planner, module: nn.Module, unread: frozenset[Path], call: ForwardArguments
    ) -> Verdicts:
        """Verdicts on the planned forward that leaves `unread` out; none where it does not hold or cannot be asked."""
        plan = planner.plans[module, (module.training, unread)]
        read_by_place = all(len(path) == 1 and isinstance(path[0], int) for path in unread)
        if plan.variant is None or not read_by_place or room_to_check(module, call, planner.made.get(module)).whole:
            return {}
        try:
            with ForwardTrial(module, call, planner, unread) as trial:
                outcome = trial.outcome()
        except Exception as error:
            planner.failed.append((module, reason_of_failure(error, "checking it")))
            return {}
        if not outcome.ok:
            return {}
        children = planner.narrowed([plan])
        return dict.fromkeys((module, *children), Verdict(outcome.max_error))

    def _judged_or_failed(self, planner: Planner, module: nn.Module, call: ForwardArguments) -> Verdict:
        """A verdict; where checking fails, the one that nothing holds."""
        try:
            return self._judged(planner, module, call)
        except Exception as error:
            why = reason_of_failure(error, "checking it")
            found = [f for p in planner.whole(module).values() for f in p.found if f.fused]
            planner.forget(module)
            return Verdict(None, tuple((f, why) for f in found))

    def _judged(self, planner: Planner, module: nn.Module, call: ForwardArguments) -> Verdict:
        room = room_to_check(module, call, planner.made.get(module))
        if room.whole and room.part != "":
            return _not_verified(planner, module, room.whole)
        with ForwardTrial(module, call, planner, alone=room.whole) as trial:
            outcome = trial.outcome()
            if outcome.ok:
                return Verdict(outcome.max_error, size=outcome.size)
            if room.whole and outcome.reason == room.whole:  # the part that there is room for cannot tell
                return _not_verified(planner, module, room.whole)
            return _blame(planner, module, trial, outcome)


def _not_verified(planner: Planner, module: nn.Module, why: str) -> Verdict:
    """The verdict on a module for whose check there is no room."""
    found = [f for p in planner.whole(module).values() for f in p.found if f.fused]
    planner.forget(module)
    reason = because(outcomes.NOT_VERIFIED, why=f"{why} {UNCHECKED}")
    return Verdict(None, tuple((f, reason) for f in found))


def _blame(planner: Planner, module: nn.Module, trial: ForwardTrial, outcome: Verification) -> Verdict:
    """Take the sites back in one by one, and leave out those that fail."""
    sites, before = planner.fused_sites(module), planner.states[module].exclusions
    failed: list[tuple[Found, Reason]] = []
    out, error = set(sites), 0.0
    for key, found in sites.items():
        planner.plan_again(module, before.plus(out - {key}))
        tried = trial.outcome()
        if tried.ok:
            out.discard(key)
            error = max(error, tried.max_error)
        else:
            failed.append((found, because(outcomes.DIFFERS, why=tried.reason)))
    planner.plan_again(module, before.plus(out))
    if not trial.outcome().ok:
        planner.forget(module)
        failed = [(f, because(outcomes.DIFFERS, why=outcome.reason)) for f in sites.values()]
    return Verdict(error, tuple(failed))


def _key(planner: Planner, module: nn.Module, plans: Plans) -> Hashable:
    """Equal for modules that would be checked alike: guards may differ, such as the number of a layer."""
    forwards = tuple(p.forward for p in plans.values())
    children = tuple(planner.forwards(c, d) for p in plans.values() for c, d in p.narrowed)
    return type(module), forwards, children


def _without(planner: Planner, module: nn.Module, verdict: Verdict) -> Exclusions:
    return planner.states[module].exclusions.plus([found.key for found, _ in verdict.failed])
