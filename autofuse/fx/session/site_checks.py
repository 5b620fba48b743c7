"""Verifies the plans of modules on copies, before they are installed. If a module fails, sites are tried one by one."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace

from torch import nn

from autofuse.display.progress import ShowProgress
from autofuse.fx.rewrite.module_plan import Found
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.memory_room import UNCHECKED, room_to_check
from autofuse.fx.session.planner import Planner, Plans, bypassed_children
from autofuse.fx.session.state import Exclusions
from autofuse.fx.session.trials import ForwardTrial
from autofuse.fx.trace.module_calls import Calls
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.values import Untraceable
from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.verify.modules import Verification

Verdicts = dict[nn.Module, "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """The result of verifying a module.

    Attributes:
        max_error: The largest difference from the original that was observed.
        failed: The sites that failed, with reasons.
        size: The part of the call that was checked in float64, "" for the whole call.
    """

    max_error: float | None = None
    failed: tuple[tuple[Found, Reason], ...] = ()
    size: str = ""


class Checker:
    """Verifies modules. Equal layers are verified once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Verdict] = {}
        self._in_training: Calls = {}

    def check(
        self, planner: Planner, real: Calls, show_progress: ShowProgress, in_training: Calls | None = None
    ) -> Verdicts:
        """A verdict for each module with fused sites. Sites that fail are excluded from its plans.

        A module that the fused code of its parent replaces has no verdict. It is not called, unless a guard of the
        parent fails; then it is captured and verified at that call.

        Args:
            planner: The plans.
            real: The calls of modules on real tensors.
            show_progress: Reports progress.
            in_training: Those in training, of modules that get another kind of call there.
        """
        self._in_training = in_training or {}
        verdicts: Verdicts = {}
        done: set[nn.Module] = set()
        # If the check of a parent fails, its children are called again, and follow in a further round.
        while modules := _modules_to_check(planner, done):
            for module in show_progress("checking", modules, len(modules)):
                self._check_module(planner, module, real, verdicts)
            done.update(modules)
        return verdicts

    def _check_module(self, planner: Planner, module: nn.Module, real: Calls, verdicts: Verdicts) -> None:
        plans = planner.full_plans(module)
        if not any(p.variant for p in plans.values()):
            return
        key = _key(planner, module, plans)
        if key not in self._known and module not in real:
            return  # its call is unknown, and it is not equal to a checked module
        if key not in self._known:
            self._known[key] = self._verify_safely(planner, module, real[module])
        elif self._known[key].failed:
            planner.plan_again(module, _exclude_failed_sites(planner, module, self._known[key]))
        verdicts[module] = self._known[key]
        # A narrow child was checked as a part of its caller.
        for child in planner.narrow_children(plans.values()):
            verdicts.setdefault(child, replace(self._known[key], failed=()))

    def check_partial(
        self, planner: Planner, module: nn.Module, unread: frozenset[Path], call: ForwardArguments
    ) -> Verdicts:
        """Verdicts on the narrow forward without `unread`; none if it fails or cannot be checked."""
        plan = planner.plans[module, (module.training, unread)]
        # Only positions in a returned tuple can be left out of the comparison.
        read_by_place = all(len(path) == 1 and isinstance(path[0], int) for path in unread)
        if (
            plan.variant is None
            or not read_by_place
            or room_to_check(module, call, planner.created_bytes.get(module)).whole
        ):
            return {}
        try:
            with ForwardTrial(module, call, planner, unread) as trial:
                outcome = trial.outcome()
        except Untraceable as error:
            planner.failed.append((module, because(outcomes.NOT_VERIFIED, why=str(error))))
            return {}
        except Exception as error:
            planner.failed.append((module, reason_of_failure(error, "checking it")))
            return {}
        if not outcome.ok:
            return {}
        children = planner.narrow_children([plan])
        return dict.fromkeys((module, *children), Verdict(outcome.max_error))

    def _verify_safely(self, planner: Planner, module: nn.Module, call: ForwardArguments) -> Verdict:
        """A verdict. If the check itself raises, all sites fail."""
        try:
            return self._verify(planner, module, call)
        except Untraceable as error:
            return _not_verified(planner, module, str(error))
        except Exception as error:
            why = reason_of_failure(error, "checking it")
            found = [f for p in planner.full_plans(module).values() for f in p.found if f.fused]
            planner.forget(module)
            return Verdict(None, tuple((f, why) for f in found))

    def _verify(self, planner: Planner, module: nn.Module, call: ForwardArguments) -> Verdict:
        if (other := self._in_training.get(module)) is None:
            return self._verify_call(planner, module, call, (True, False))
        found = [self._verify_call(planner, module, c, (mode,)) for mode, c in ((True, other), (False, call))]
        errors = [verdict.max_error for verdict in found if verdict.max_error is not None]
        return replace(found[0], max_error=max(errors, default=None), failed=tuple(f for v in found for f in v.failed))

    def _verify_call(
        self, planner: Planner, module: nn.Module, call: ForwardArguments, modes: tuple[bool, ...]
    ) -> Verdict:
        room = room_to_check(module, call, planner.created_bytes.get(module))
        if room.whole and room.part != "":
            return _not_verified(planner, module, f"{room.whole} {UNCHECKED}")
        with ForwardTrial(module, call, planner, alone=room.whole, modes=modes) as trial:
            outcome = trial.outcome()
            if outcome.ok:
                return Verdict(outcome.max_error, size=outcome.size)
            if room.whole and outcome.reason == room.whole:  # the part that fits into memory decides nothing
                return _not_verified(planner, module, f"{room.whole} {UNCHECKED}")
            return _find_failing_sites(planner, module, trial, outcome)


def _modules_to_check(planner: Planner, done: Collection[nn.Module]) -> list[nn.Module]:
    """The planned modules that are called in the fused model, without those that are done."""
    bypassed = {child for child, _, _ in bypassed_children(planner)}
    return [m for m in dict.fromkeys(m for m, _ in planner.plans) if m not in bypassed and m not in done]


def _not_verified(planner: Planner, module: nn.Module, why: str) -> Verdict:
    """The verdict on a module that cannot be checked."""
    found = [f for p in planner.full_plans(module).values() for f in p.found if f.fused]
    planner.forget(module)
    reason = because(outcomes.NOT_VERIFIED, why=why)
    return Verdict(None, tuple((f, reason) for f in found))


def _find_failing_sites(planner: Planner, module: nn.Module, trial: ForwardTrial, outcome: Verification) -> Verdict:
    """Try the sites one by one, and exclude those that fail."""
    sites, before = planner.fused_sites(module), planner.states[module].exclusions
    failed: list[tuple[Found, Reason]] = []
    excluded, error = set(sites), 0.0
    for key, found in sites.items():
        planner.plan_again(module, before.plus(excluded - {key}))
        site_outcome = trial.outcome()
        if site_outcome.ok:
            excluded.discard(key)
            error = max(error, site_outcome.max_error)
        else:
            failed.append((found, because(outcomes.DIFFERS, why=site_outcome.reason)))
    planner.plan_again(module, before.plus(excluded))
    # Sites that hold one by one may fail together.
    if not trial.outcome().ok:
        planner.forget(module)
        failed = [(f, because(outcomes.DIFFERS, why=outcome.reason)) for f in sites.values()]
    return Verdict(error, tuple(failed))


def _key(planner: Planner, module: nn.Module, plans: Plans) -> Hashable:
    """A key. It is equal for modules with equal checks. Guards may differ, for example in the index of the layer."""
    forwards = tuple(p.forward for p in plans.values())
    children = tuple(planner.forward_keys(c, d) for p in plans.values() for c, d in p.narrowed)
    return type(module), forwards, children


def _exclude_failed_sites(planner: Planner, module: nn.Module, verdict: Verdict) -> Exclusions:
    return planner.states[module].exclusions.plus([found.key for found, _ in verdict.failed])
