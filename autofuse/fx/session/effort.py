"""How much work is ahead once a model is planned, in a line for the log. Knows plans; must not do any of the work."""

from __future__ import annotations

from autofuse.fx.session.memory_room import call_takes
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.site_timing import SECONDS
from autofuse.fx.trace.module_calls import Calls
from autofuse.measure.step_pairs import TIME_LIMIT

_RACED = 3  # a place is timed as it was written, fused, and with about one other kernel


def effort(planner: Planner, real: Calls, verify: bool, tune: bool) -> str:
    """What there is to check and to weigh, and about how long weighing takes; "" where nothing was found.

    What was measured or compiled before is found again, and takes less.
    """
    plans = [(module, plan) for (module, _), plan in planner.plans.items() if plan.variant is not None]
    modules = dict.fromkeys(module for module, _ in plans)
    if not modules:
        return ""
    said = []
    if verify:
        kinds = [m for m in modules if m in real]
        most = max((n for m in kinds for n in call_takes(m, real[m], planner.made.get(m)).values()), default=0)
        said.append(f"{_count(len(kinds), 'kind')} of modules to check, with up to {most / 2**30:.2f} GiB")
    if tune:
        places = {
            (f.excerpt.likeness, mode) for (_, (mode, _)), p in planner.plans.items() for f in p.found if f.excerpt
        }
        seconds = len(places) * _RACED * SECONDS + 2 * TIME_LIMIT
        said.append(f"{_count(len({p for p, _ in places}), 'place')} to weigh, in at most about {seconds:.0f} s")
    return "; ".join(said)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
