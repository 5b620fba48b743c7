"""Describes in one log line how much there is to check and to time after planning."""

from __future__ import annotations

from autofuse.fx.session.memory_room import call_check_bytes
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.site_timing import SECONDS
from autofuse.fx.trace.module_calls import Calls
from autofuse.measure.step_pairs import TIME_LIMIT

_CANDIDATES = 3  # timings of a site: the original, the fused code, and about one other kernel


def describe_work(planner: Planner, real: Calls, verify: bool, tune: bool) -> str:
    """The number of modules to check and of sites to time, with an estimate of memory and seconds; "" for none.

    Cached measurements and compiled code make it faster than the estimate.
    """
    plans = [(module, plan) for (module, _), plan in planner.plans.items() if plan.variant is not None]
    modules = dict.fromkeys(module for module, _ in plans)
    if not modules:
        return ""
    parts = []
    if verify:
        checked = [m for m in modules if m in real]
        largest = max(
            (n for m in checked for n in call_check_bytes(m, real[m], planner.created_bytes.get(m)).values()), default=0
        )
        parts.append(f"{_count(len(checked), 'kind')} of modules to check, with up to {largest / 2**30:.2f} GiB")
    if tune:
        sites = {(f.excerpt.key, mode) for (_, (mode, _)), p in planner.plans.items() for f in p.found if f.excerpt}
        seconds = len(sites) * _CANDIDATES * SECONDS + 2 * TIME_LIMIT
        parts.append(f"{_count(len({p for p, _ in sites}), 'site')} to time, in at most about {seconds:.0f} s")
    return "; ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
