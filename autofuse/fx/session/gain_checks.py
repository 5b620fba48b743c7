"""Removes fused sites that gain nothing from their plans, and records the measured times of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from autofuse.display.progress import ShowProgress
from autofuse.fx.rewrite.module_plan import Found, ModulePlan
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.memory_room import step_bytes, why_no_room
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.ranks import is_single_rank, this_rank
from autofuse.fx.session.site_checks import Verdicts
from autofuse.fx.session.site_timing import SiteTimer, SiteTiming
from autofuse.fx.session.trials import copy_module
from autofuse.fx.trace.twin import set_mode
from autofuse.measure.created_bytes import BytesByDevice
from autofuse.reasons.reason import Reason
from autofuse.results.sites import SiteReport

_ROUNDS = 4  # without a site, a smaller one may match


class SlowerSite(NamedTuple):
    """A site that is not fused in `modes` (True is training) because it gains nothing there."""

    site: SiteReport
    modes: tuple[bool, ...]


class GainCheck(NamedTuple):
    """The verdicts for the remaining plans, and the sites that gain nothing."""

    verdicts: Verdicts
    slower: tuple[SlowerSite, ...] = ()


def keep_faster_sites(
    planner: Planner, verdicts: Verdicts, check: Callable[[], Verdicts] | None, show_progress: ShowProgress
) -> GainCheck:
    """Time each fused site, and plan again without those that gain nothing.

    Training (forward and backward) and inference (forward only) are timed separately. A site may be fused in one of
    them only. In a distributed job, rank 0 times the current mode of each module. Both modes and all other ranks follow
    it.

    Args:
        planner: The plans, which are changed.
        verdicts: The verdicts on the plans.
        check: Verifies the new plans. None verifies nothing.
        show_progress: Reports progress.

    Returns:
        The new verdicts, and the sites that are no longer fused.
    """
    # Other ranks follow the decisions of rank 0.
    if not is_single_rank() and this_rank():
        return GainCheck(verdicts)
    timer, slower = SiteTimer(), list[SlowerSite]()
    for _ in range(_ROUNDS):
        modules = list(verdicts if check else dict.fromkeys(m for m, _ in planner.plans))
        slower_sites = [
            (module, *site)
            for module in show_progress("timing", modules, len(modules))
            for site in _time_sites_safely(planner, module, timer)
        ]
        if not slower_sites:
            break
        slower += [
            _exclude_site(planner, module, training, found, timing) for module, training, found, timing in slower_sites
        ]
        verdicts = check() if check else {}
    return GainCheck(verdicts, tuple(slower))


_SlowerTiming = tuple[bool, Found, SiteTiming]


def _time_sites_safely(planner: Planner, module: nn.Module, timer: SiteTimer) -> list[_SlowerTiming]:
    """The slower sites of a module; none if timing fails, because a verified site stays fused."""
    try:
        return _time_sites(planner, module, timer)
    except Exception as error:
        planner.failed.append((module, reason_of_failure(error, "timing it", "what was checked stays fused")))
        return []


def _time_sites(planner: Planner, module: nn.Module, timer: SiteTimer) -> list[_SlowerTiming]:
    """The slower sites of a module by mode, with their timings. Records the timings of the others in the plans."""
    modes = (True, False) if is_single_rank() else (module.training,)
    plans = [(mode, p) for mode in modes for p in planner.plans_in_mode(module, mode).values()]
    if not any(f.excerpt for _, p in plans for f in p.found) or why_no_room(step_bytes(module, BytesByDevice())):
        return []
    twin = copy_module(module, {}, planner.sharded)
    slower_sites: list[_SlowerTiming] = []
    for mode, plan in plans:
        set_mode(twin, mode)
        for found in plan.found:
            if found.excerpt is None:
                continue
            timing = timer.time_site(found.excerpt, twin, mode)
            if timing.kept:
                slower_sites.append((mode, found, timing))
            elif timing.words:
                _record_timing(plan, found, timing)
    return slower_sites


def _record_timing(plan: ModulePlan, found: Found, timing: SiteTiming) -> None:
    """Record a timing in the plan."""
    plan.found = [
        replace(f, reason=timing.words, kernel=timing.kernel or f.kernel, choice=timing.choice) if f is found else f
        for f in plan.found
    ]


def _exclude_site(planner: Planner, module: nn.Module, training: bool, found: Found, timing: SiteTiming) -> SlowerSite:
    """Plan `module` again without a site: in one mode, in a distributed job in both."""
    modes = (training,) if is_single_rank() else (True, False)
    for mode in modes:
        exclude_sites(planner, module, [found], mode)
    return SlowerSite(declined_site(planner.states[module].name, found, timing.reason), modes)


def exclude_sites(planner: Planner, module: nn.Module, sites: Iterable[Found], training: bool) -> None:
    """Plan `module` again without these sites in one mode. A site has the same rule and line in both modes."""
    wanted = {(f.rule, f.place) for f in sites}
    found = [f for p in planner.plans_in_mode(module, training).values() for f in p.found]
    planner.exclude_in_mode(module, [f.key for f in found if (f.rule, f.place) in wanted], training)


def declined_site(name: str, found: Found, why: Reason) -> SiteReport:
    """The report of a site in the module `name` that is not fused."""
    file, line = (found.place.file, found.place.line) if found.place else ("", None)
    return SiteReport(
        found.rule, name, "declined", str(why), file=file, line=line, advice=why.advice(), reason_code=why.code.name
    )
