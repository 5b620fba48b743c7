"""One rank does what another rank does: its decisions as texts, and back as sites that are left out.

Knows plans, verdicts and reports; who decides, and how ranks hear of it, is in ranks.py.
"""

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
    alone,
    left_out,
    reason_of,
    sizes_of,
    this_rank,
)
from autofuse.fx.session.site_checks import Checker, Verdict, Verdicts
from autofuse.fx.session.state import ModuleState
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.results.sites import Report, SiteReport

_ROUNDS = 8  # what is left out may let something smaller be found in its place


class Deciding(Protocol):
    """What an optimized model shows of itself to be brought in line with other ranks."""

    ranks: Ranks
    ledger: Ledger
    checker: Checker | None

    @property
    def states(self) -> Mapping[nn.Module, ModuleState]:
        """The modules, and what each runs."""

    @property
    def report(self) -> Report:
        """What was found so far."""

    def forget(self) -> None:
        """Take back all that was decided."""


def decide_as_rank_0_does(mine: Deciding, decide: Callable[[], Planner]) -> None:
    """Run `decide`, and again without what rank 0 left out, until both agree. Raises Disagreement."""
    planner = decide()
    if alone():
        return
    said = _reported(mine)
    theirs = mine.ranks.at_optimize(said)
    for _ in range(_ROUNDS):
        out = _left_out(planner, said, theirs)
        if not out:
            return
        _leave_out(planner, out, theirs)
        mine.forget()
        planner = decide()
        _note(mine.ledger, theirs, out)
        said = _reported(mine)
    raise Disagreement(_endless(said, theirs))


def planned_as_others_do(mine: Deciding, planner: Planner, module: nn.Module, call: ForwardArguments) -> Verdicts:
    """Plan and check one call of a module, without what the first rank to plan it left out. Raises Disagreement."""
    mode, name = module.training, mine.states[module].name
    theirs: Decisions | None = None
    for _ in range(_ROUNDS):
        planner.plans.clear()
        planner.plan(module, mode, frozenset())
        verdicts = mine.checker.check(planner, planner.calls[mode], quietly) if mine.checker else {}
        if alone():
            return verdicts
        said = _planned(mine.ranks, planner, verdicts, call)
        theirs = theirs or mine.ranks.at_call(name, mode, call, said)
        out = _left_out(planner, said, theirs)
        if not out:
            return verdicts
        _leave_out(planner, out, theirs)
        _note(mine.ledger, theirs, out)
    raise Disagreement(_endless(said, theirs or said))


def _left_out(planner: Planner, said: Decisions, theirs: Decisions) -> frozenset[SiteKey]:
    """What to leave out. Where autofuse failed on this rank, the original runs, whatever the others do."""
    try:
        return left_out(said, theirs)
    except Disagreement:
        if planner.failed:
            return frozenset()
        raise


def part_is_planned_as_others_do(
    mine: Deciding, planner: Planner, module: nn.Module, unread: frozenset[Path], call: ForwardArguments
) -> Verdicts:
    """The same for a call of which `unread` is not read; nothing holds where another rank left something out."""
    plan = planner.plan(module, module.training, unread)
    if plan is None or plan.variant is None:
        return {}
    verdicts = {m: Verdict() for m, _ in planner.plans}
    if mine.checker is not None:
        verdicts = mine.checker.check_part(planner, module, unread, planner.calls[module.training][module])
    if not verdicts or alone():
        return verdicts
    said = _planned(mine.ranks, planner, verdicts, call)
    name = f"{mine.states[module].name} without {sorted(map(str, unread))}"
    return {} if left_out(said, mine.ranks.at_call(name, module.training, call, said)) else verdicts


def _reported(mine: Deciding) -> Decisions:
    """What the report says."""
    sites = mine.report.sites
    fused = frozenset((s.module, s.rule, str(s.line)) for s in sites if s.status == "fused")
    others = {(s.module, s.rule): (str(s.status), s.reason) for s in sites if s.status != "fused"}
    return Decisions(fused, others, mine.ranks.model, "", this_rank())


def _planned(ranks: Ranks, planner: Planner, verdicts: Verdicts, call: ForwardArguments) -> Decisions:
    """What plans say."""
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


def _leave_out(planner: Planner, out: Iterable[SiteKey], theirs: Decisions) -> None:
    """Exclude these from now on: a whole rule where the other rank has no use for it in a module."""
    wanted, theirs_too = set(out), {(module, rule) for module, rule, _ in theirs.fused}
    for (module, _), plan in planner.plans.items():
        state = planner.states[module]
        for found in plan.found:
            if found.fused and (state.name, found.rule, str(found.place.line if found.place else None)) in wanted:
                if (state.name, found.rule) in theirs_too:
                    state.exclusions = state.exclusions.plus(sites=[found.key])
                else:
                    state.exclusions = state.exclusions.plus(rules=[found.rule])


def _note(ledger: Ledger, theirs: Decisions, sites: Iterable[SiteKey]) -> None:
    for module, rule, line in sorted(sites):
        status, reason = reason_of(theirs, module, rule)
        number = int(line) if line.isdigit() else None
        ledger.note(SiteReport(
            rule, module, status, str(reason), line=number, reason_code=reason.code.name,  # type: ignore[arg-type]
        ))  # fmt: skip


def _endless(mine: Decisions, theirs: Decisions) -> str:
    module, rule, _ = min(mine.fused - theirs.fused)
    return f"Ranks disagree about {rule} in {module or 'the model'}, and leaving it out does not end it."
