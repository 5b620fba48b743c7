"""Fused places that do not gain anything are taken out of their plans again; the others say what they gain.

Knows plans and what timing says of their places; must not know how a place is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from autofuse.display.progress import Tell
from autofuse.fx.rewrite.module_plan import Found
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.memory_room import lack_of_room
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.ranks import alone, this_rank
from autofuse.fx.session.site_checks import Verdicts
from autofuse.fx.session.site_timing import SiteTimer, SiteTiming
from autofuse.fx.session.trials import copied
from autofuse.fx.trace.twin import set_mode
from autofuse.results.sites import SiteReport

_ROUNDS = 4  # what is left out may let something smaller be found in its place


class GainCheck(NamedTuple):
    """The verdicts on what remains, and a report on each place that gains nothing."""

    verdicts: Verdicts
    slower: tuple[SiteReport, ...] = ()


def keep_faster_places(
    planner: Planner, verdicts: Verdicts, check: Callable[[], Verdicts] | None, tell: Tell
) -> GainCheck:
    """Time every fused place in the mode that its module is in, and plan again without those that gain nothing.

    `check` judges what is planned then; None where nothing is verified. Where ranks have to agree, rank 0 weighs and
    the others follow it.
    """
    if not alone() and this_rank():
        return GainCheck(verdicts)
    scales, slower = SiteTimer(), list[SiteReport]()
    for _ in range(_ROUNDS):
        modules = list(verdicts if check else dict.fromkeys(m for m, _ in planner.plans))
        beaten = [
            (module, found, weight)
            for module in tell("weighing", modules, len(modules))
            for found, weight in _weighed(planner, module, scales)
        ]
        if not beaten:
            break
        slower += [_left_out(planner, module, found, weight) for module, found, weight in beaten]
        verdicts = check() if check else {}
    return GainCheck(verdicts, tuple(slower))


def _weighed(planner: Planner, module: nn.Module, scales: SiteTimer) -> list[tuple[Found, SiteTiming]]:
    """The results of weighing; none if weighing fails: a fusion that was verified stays."""
    try:
        return _weigh(planner, module, scales)
    except Exception as error:
        planner.failed.append((module, reason_of_failure(error, "weighing it", "what was checked stays fused")))
        return []


def _weigh(planner: Planner, module: nn.Module, scales: SiteTimer) -> list[tuple[Found, SiteTiming]]:
    """The places of a module where the original stays, and what was measured; the others are told their gain."""
    mode = module.training
    plans = planner.in_mode(module, mode)
    if not any(f.excerpt for p in plans.values() for f in p.found) or lack_of_room(module):
        return []
    twin = copied(module, {}, planner.sharded)
    set_mode(twin, mode)
    beaten = []
    for dropped, plan in plans.items():
        for found in plan.found:
            if found.excerpt is None:
                continue
            weight = scales.weigh(found.excerpt, twin, mode)
            if weight.kept and not dropped:  # a caller relies on what a narrow forward leaves out
                beaten.append((found, weight))
            elif weight.words:
                _tell(planner, module, found, weight)
    return beaten


def _tell(planner: Planner, module: nn.Module, found: Found, weight: SiteTiming) -> None:
    """Put the words to a place, in the plans for either mode."""
    for plan in [p for (m, _), p in planner.plans.items() if m is module]:
        plan.found = [
            replace(f, reason=weight.words, kernel=weight.kernel or f.kernel)
            if (f.rule, f.place, f.fused) == (found.rule, found.place, True) and f.excerpt is not None
            else f
            for f in plan.found
        ]


def _left_out(planner: Planner, module: nn.Module, found: Found, weight: SiteTiming) -> SiteReport:
    """Plan `module` again without a place, which both modes name alike but for the node."""
    state = planner.states[module]
    plans = [p for (m, _), p in planner.plans.items() if m is module]
    same = [f.key for p in plans for f in p.found if (f.rule, f.place) == (found.rule, found.place)]
    planner.plan_again(module, state.exclusions.plus(same))
    file, line = (found.place.file, found.place.line) if found.place else ("", None)
    reason = weight.reason
    return SiteReport(
        found.rule, state.name, "declined", str(reason), file=file, line=line, advice=reason.advice(),
        reason_code=reason.code.name,
    )  # fmt: skip
