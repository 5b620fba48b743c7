"""A session does what another rank's does: its decisions as texts, and back as sites that are left out.

Knows plans, verdicts and reports; who decides, and how ranks hear of it, is in ranks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch import nn

from autofuse.fx.session.ranks import Decisions, Disagreement, SiteKey, alone, left_out, reason_of, sizes_of, this_rank
from autofuse.fx.session.site_checks import Verdict
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.results.sites import SiteReport

if TYPE_CHECKING:
    from autofuse.fx.session.planner import Planner
    from autofuse.fx.session.session import Session

_ROUNDS = 8  # what is left out may let something smaller be found in its place


def decide_as_rank_0_does(session: Session, decide: Callable[[], None]) -> None:
    """Run `decide`, which fills the session, and again without what rank 0 left out. Raises Disagreement."""
    decide()
    if alone():
        return
    mine = _reported(session)
    theirs = session.ranks.at_optimize(mine)
    for _ in range(_ROUNDS):
        out = left_out(mine, theirs)
        if not out:
            return
        assert session.planner is not None
        _leave_out(session, session.planner, out, theirs)
        session.forget()
        decide()
        _note(session, theirs, out)
        mine = _reported(session)
    raise Disagreement(_endless(mine, theirs))


def planned_as_others_do(
    session: Session, planner: Planner, module: nn.Module, call: ForwardArguments
) -> dict[nn.Module, Verdict]:  # fmt: skip
    """Plan and check one call of a module, without what the first rank to plan it left out. Raises Disagreement."""
    mode, name = module.training, session.states[module].name
    theirs: Decisions | None = None
    for _ in range(_ROUNDS):
        planner.plans.clear()
        planner.plan(module, mode, frozenset())
        verdicts = session.check(planner, planner.calls[mode])
        if alone():
            return verdicts
        mine = _planned(session, planner, verdicts, call)
        theirs = theirs or session.ranks.at_call(name, mode, call, mine)
        out = left_out(mine, theirs)
        if not out:
            return verdicts
        _leave_out(session, planner, out, theirs)
        _note(session, theirs, out)
    raise Disagreement(_endless(mine, theirs or mine))


def part_is_planned_as_others_do(
    session: Session, planner: Planner, module: nn.Module, unread: frozenset[Path], call: ForwardArguments
) -> dict[nn.Module, Verdict]:
    """The same for a call of which `unread` is not read; nothing holds where another rank left something out."""
    plan, checker = planner.plan(module, module.training, unread), session.checker
    if plan is None or plan.variant is None:
        return {}
    verdicts = {m: Verdict() for m, _ in planner.plans}
    if checker is not None:
        verdicts = checker.check_part(planner, module, unread, planner.calls[module.training][module])
    if not verdicts or alone():
        return verdicts
    mine = _planned(session, planner, verdicts, call)
    name = f"{session.states[module].name} without {sorted(map(str, unread))}"
    return {} if left_out(mine, session.ranks.at_call(name, module.training, call, mine)) else verdicts


def _reported(session: Session) -> Decisions:
    """What the report says."""
    sites = session.report.sites
    fused = frozenset((s.module, s.rule, str(s.line)) for s in sites if s.status == "fused")
    others = {(s.module, s.rule): (str(s.status), s.reason) for s in sites if s.status != "fused"}
    return Decisions(fused, others, session.ranks.model, "", this_rank())


def _planned(
    session: Session, planner: Planner, verdicts: dict[nn.Module, Verdict], call: ForwardArguments
) -> Decisions:
    """What plans say."""
    fused: set[SiteKey] = set()
    others: dict[tuple[str, str], tuple[str, str]] = {}
    for (module, _), plan in planner.plans.items():
        name, verdict = session.states[module].name, verdicts.get(module)
        for found in plan.found:
            if found.fused:
                fused.add((name, found.rule, str(found.place.line if found.place else None)))
            else:
                others.setdefault((name, found.rule), ("declined", found.reason))
        others |= {(name, f.rule): ("rolled-back", why) for f, why in (verdict.failed if verdict else ())}
    return Decisions(frozenset(fused), others, session.ranks.model, sizes_of(call), this_rank())


def _leave_out(session: Session, planner: Planner, out: Iterable[SiteKey], theirs: Decisions) -> None:
    """Plan without these from now on: without a rule where the other rank has no use for it in a module."""
    wanted, theirs_too = set(out), {(module, rule) for module, rule, _ in theirs.fused}
    for (module, _), plan in planner.plans.items():
        state = session.states[module]
        for found in plan.found:
            if found.fused and (state.name, found.rule, str(found.place.line if found.place else None)) in wanted:
                if (state.name, found.rule) in theirs_too:
                    state.left_out.add(found.key)
                else:
                    state.without.add(found.rule)


def _note(session: Session, theirs: Decisions, sites: Iterable[SiteKey]) -> None:
    for module, rule, line in sorted(sites):
        status, reason = reason_of(theirs, module, rule)
        number = int(line) if line.isdigit() else None
        session.ledger.note(SiteReport(rule, module, status, reason, line=number))  # type: ignore[arg-type]


def _endless(mine: Decisions, theirs: Decisions) -> str:
    module, rule, _ = min(mine.fused - theirs.fused)
    return f"Ranks disagree about {rule} in {module or 'the model'}, and leaving it out does not end it."
