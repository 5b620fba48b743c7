"""Makes one rank follow the decisions of another, by excluding sites. ranks.py exchanges the decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from torch import nn

from autofuse.display.progress import quietly
from autofuse.fx.session.ledger import Ledger
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.ranks import (
    Decisions,
    Disagreement,
    Ranks,
    SiteKey,
    exclusion_reason,
    is_single_rank,
    sites_to_exclude,
    sizes_of,
    this_rank,
)
from autofuse.fx.session.site_checks import Checker, Verdict, Verdicts
from autofuse.fx.session.state import ModuleState
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.results.sites import Report, SiteReport

_ROUNDS = 8  # without a site, a smaller one may match


class SyncedSession(Protocol):
    """The parts of a session that the agreement of ranks needs."""

    ranks: Ranks
    ledger: Ledger
    checker: Checker | None

    @property
    def states(self) -> Mapping[nn.Module, ModuleState]:
        """The state of each module."""

    @property
    def report(self) -> Report:
        """The sites found so far."""

    def forget(self) -> None:
        """Undo all decisions."""


def follow_rank_0(mine: SyncedSession, decide: Callable[[], Planner]) -> None:
    """Run `decide` until its fused sites agree with rank 0's. Each time, exclude what rank 0 does not fuse.

    Raises:
        Disagreement: This rank cannot fuse a site that rank 0 fuses.
    """
    planner = decide()
    if is_single_rank():
        return
    ours = _decisions_of_report(mine)
    theirs = mine.ranks.at_optimize(ours)
    for _ in range(_ROUNDS):
        excluded = _sites_to_exclude(planner, ours, theirs)
        if not excluded:
            return
        _exclude(planner, excluded, theirs)
        mine.forget()
        planner = decide()
        _note_excluded(mine.ledger, theirs, excluded)
        ours = _decisions_of_report(mine)
    raise Disagreement(_endless_message(ours, theirs))


def plan_in_sync(mine: SyncedSession, planner: Planner, module: nn.Module, call: ForwardArguments) -> Verdicts:
    """Plan and check one call of a module, without the sites that the first rank to plan it did not fuse.

    Raises:
        Disagreement: This rank cannot fuse a site that the first rank fuses.
    """
    mode, name = module.training, mine.states[module].name
    theirs: Decisions | None = None
    for _ in range(_ROUNDS):
        planner.plans.clear()
        planner.plan(module, mode, frozenset())
        verdicts = mine.checker.check(planner, planner.calls[mode], quietly) if mine.checker else {}
        if is_single_rank():
            return verdicts
        ours = _decisions_of_plans(mine.ranks, planner, verdicts, call)
        theirs = theirs or mine.ranks.at_call(name, mode, call, ours)
        excluded = _sites_to_exclude(planner, ours, theirs)
        if not excluded:
            return verdicts
        _exclude(planner, excluded, theirs)
        _note_excluded(mine.ledger, theirs, excluded)
    raise Disagreement(_endless_message(ours, theirs or ours))


def _sites_to_exclude(planner: Planner, ours: Decisions, theirs: Decisions) -> frozenset[SiteKey]:
    """The sites to exclude. If autofuse failed on this rank, there are none, and the original runs."""
    try:
        return sites_to_exclude(ours, theirs)
    except Disagreement:
        if planner.failed:
            return frozenset()
        raise


def plan_partial_call_in_sync(
    mine: SyncedSession, planner: Planner, module: nn.Module, unread: frozenset[Path], call: ForwardArguments
) -> Verdicts:
    """The same for a call whose parts at `unread` are not read. No verdicts if another rank excluded a site."""
    plan = planner.plan(module, module.training, unread)
    if plan is None or plan.variant is None:
        return {}
    verdicts = {m: Verdict() for m, _ in planner.plans}
    if mine.checker is not None:
        verdicts = mine.checker.check_partial(planner, module, unread, planner.calls[module.training][module])
    if not verdicts or is_single_rank():
        return verdicts
    ours = _decisions_of_plans(mine.ranks, planner, verdicts, call)
    name = f"{mine.states[module].name} without {sorted(map(str, unread))}"
    return {} if sites_to_exclude(ours, mine.ranks.at_call(name, module.training, call, ours)) else verdicts


def _decisions_of_report(mine: SyncedSession) -> Decisions:
    """The decisions in the report."""
    sites = mine.report.sites
    fused = frozenset((s.module, s.rule, str(s.line)) for s in sites if s.status == "fused")
    others = {(s.module, s.rule): (str(s.status), s.reason) for s in sites if s.status != "fused"}
    return Decisions(fused, others, mine.ranks.model, "", this_rank())


def _decisions_of_plans(ranks: Ranks, planner: Planner, verdicts: Verdicts, call: ForwardArguments) -> Decisions:
    """The decisions in the plans."""
    fused: set[SiteKey] = set()
    others: dict[tuple[str, str], tuple[str, str]] = {}
    for (module, _), plan in planner.plans.items():
        name, verdict = planner.states[module].name, verdicts.get(module)
        for found in plan.found:
            if found.fused:
                fused.add((name, found.rule, str(found.place.line if found.place else None)))
            else:
                others.setdefault((name, found.rule), ("declined", found.reason))
        others |= {(name, f.rule): ("rolled-back", str(why)) for f, why in (verdict.failed if verdict else ())}
    return Decisions(frozenset(fused), others, ranks.model, sizes_of(call), this_rank())


def _exclude(planner: Planner, excluded: Iterable[SiteKey], theirs: Decisions) -> None:
    """Exclude these sites. If the other rank fuses no site of a rule in a module, exclude the rule there."""
    wanted, theirs_too = set(excluded), {(module, rule) for module, rule, _ in theirs.fused}
    for (module, _), plan in planner.plans.items():
        state = planner.states[module]
        for found in plan.found:
            if found.fused and (state.name, found.rule, str(found.place.line if found.place else None)) in wanted:
                # The other rank may fuse another site of this rule in the module.
                if (state.name, found.rule) in theirs_too:
                    state.exclusions = state.exclusions.plus(sites=[found.key])
                else:
                    state.exclusions = state.exclusions.plus(rules=[found.rule])


def _note_excluded(ledger: Ledger, theirs: Decisions, sites: Iterable[SiteKey]) -> None:
    for module, rule, line in sorted(sites):
        status, reason = exclusion_reason(theirs, module, rule)
        number = int(line) if line.isdigit() else None
        ledger.note(SiteReport(
            rule, module, status, str(reason), line=number, reason_code=reason.code.name,  # type: ignore[arg-type]
        ))  # fmt: skip


def _endless_message(mine: Decisions, theirs: Decisions) -> str:
    module, rule, _ = min(mine.fused - theirs.fused)
    return (
        f"Ranks disagree about {rule} in {module or 'the model'}, and excluding it on this rank does not resolve that. "
        f"Exclude the rule on all ranks: ignore=[{rule!r}]."
    )
