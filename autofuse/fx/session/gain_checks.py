"""Fused places that do not gain anything are taken out of their plans again; the others say what they gain.

Knows plans and what timing says of their places; must not know how a place is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from autofuse.display.progress import Tell
from autofuse.fx.rewrite.module_plan import Found, ModulePlan
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.memory_room import lack_of_room, step_takes
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.ranks import alone, this_rank
from autofuse.fx.session.site_checks import Verdicts
from autofuse.fx.session.site_timing import SiteTimer, SiteTiming
from autofuse.fx.session.trials import copied
from autofuse.fx.trace.twin import set_mode
from autofuse.measure.created_bytes import BytesByDevice
from autofuse.reasons.reason import Reason
from autofuse.results.sites import SiteReport

_ROUNDS = 4  # what is left out may let something smaller be found in its place


class SlowerPlace(NamedTuple):
    """A place that is not fused in `modes` (True is training) because it gains nothing there."""

    site: SiteReport
    modes: tuple[bool, ...]


class GainCheck(NamedTuple):
    """The verdicts on what remains, and the places that gain nothing."""

    verdicts: Verdicts
    slower: tuple[SlowerPlace, ...] = ()


def keep_faster_places(
    planner: Planner, verdicts: Verdicts, check: Callable[[], Verdicts] | None, tell: Tell
) -> GainCheck:
    """Time every fused place, and plan again without those that gain nothing.

    Training (forward and backward) and inference (the forward alone) are timed apart, and a place may be fused in one
    of them only. `check` judges what is planned then; None where nothing is verified. Where ranks have to agree, rank 0
    times the mode that a module is in, both modes follow it, and so do the other ranks.
    """
    if not alone() and this_rank():
        return GainCheck(verdicts)
    timer, slower = SiteTimer(), list[SlowerPlace]()
    for _ in range(_ROUNDS):
        modules = list(verdicts if check else dict.fromkeys(m for m, _ in planner.plans))
        beaten = [
            (module, *place)
            for module in tell("weighing", modules, len(modules))
            for place in _weighed(planner, module, timer)
        ]
        if not beaten:
            break
        slower += [_left_out(planner, module, training, found, weight) for module, training, found, weight in beaten]
        verdicts = check() if check else {}
    return GainCheck(verdicts, tuple(slower))


_Beaten = tuple[bool, Found, SiteTiming]


def _weighed(planner: Planner, module: nn.Module, timer: SiteTimer) -> list[_Beaten]:
    """The results of weighing; none if weighing fails: a fusion that was verified stays."""
    try:
        return _weigh(planner, module, timer)
    except Exception as error:
        planner.failed.append((module, reason_of_failure(error, "weighing it", "what was checked stays fused")))
        return []


def _weigh(planner: Planner, module: nn.Module, timer: SiteTimer) -> list[_Beaten]:
    """The places of a module where the original stays, by mode, and what was measured; the others hear their gain."""
    modes = (True, False) if alone() else (module.training,)
    plans = [(mode, p) for mode in modes for p in planner.in_mode(module, mode).values()]
    if not any(f.excerpt for _, p in plans for f in p.found) or lack_of_room(step_takes(module, BytesByDevice())):
        return []
    twin = copied(module, {}, planner.sharded)
    beaten: list[_Beaten] = []
    for mode, plan in plans:
        set_mode(twin, mode)
        for found in plan.found:
            if found.excerpt is None:
                continue
            weight = timer.weigh(found.excerpt, twin, mode)
            if weight.kept:
                beaten.append((mode, found, weight))
            elif weight.words:
                _tell(plan, found, weight)
    return beaten


def _tell(plan: ModulePlan, found: Found, weight: SiteTiming) -> None:
    """Put the words to a place."""
    plan.found = [
        replace(f, reason=weight.words, kernel=weight.kernel or f.kernel, choice=weight.choice) if f is found else f
        for f in plan.found
    ]


def _left_out(planner: Planner, module: nn.Module, training: bool, found: Found, weight: SiteTiming) -> SlowerPlace:
    """Plan `module` again without a place: in one mode, or in both where ranks have to agree."""
    modes = (training,) if alone() else (True, False)
    for mode in modes:
        leave_out(planner, module, [found], mode)
    return SlowerPlace(declined_site(planner.states[module].name, found, weight.reason), modes)


def leave_out(planner: Planner, module: nn.Module, places: Iterable[Found], training: bool) -> None:
    """Plan `module` again without these places in one mode. The modes name a place alike but for its node."""
    wanted = {(f.rule, f.place) for f in places}
    found = [f for p in planner.in_mode(module, training).values() for f in p.found]
    planner.leave_out(module, [f.key for f in found if (f.rule, f.place) in wanted], training)


def declined_site(name: str, found: Found, why: Reason) -> SiteReport:
    """A place in the module called `name` that is not fused, and why."""
    file, line = (found.place.file, found.place.line) if found.place else ("", None)
    return SiteReport(
        found.rule, name, "declined", str(why), file=file, line=line, advice=why.advice(), reason_code=why.code.name
    )
