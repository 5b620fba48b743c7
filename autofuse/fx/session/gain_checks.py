"""The places of a plan that are not worth it are taken out of it again, and the others say by how much they are.

Knows plans and what weighing says of their places; must not know how a place is weighed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from autofuse.display.progress import Tell
from autofuse.fx.rewrite.module_plan import Found
from autofuse.fx.session.memory_room import lack_of_room
from autofuse.fx.session.ranks import alone, this_rank
from autofuse.fx.session.site_checks import Verdict, copied
from autofuse.fx.session.site_timing import Scales, Weight
from autofuse.fx.trace.module_calls import Calls, set_mode
from autofuse.results.sites import SiteReport

if TYPE_CHECKING:
    from autofuse.fx.session.planner import Planner
    from autofuse.fx.session.session import Session

_ROUNDS = 4  # what is left out may let something smaller be found in its place
_ADVICE = "nothing: it is fast as it is; tune=False fuses it unmeasured"


def keep_what_is_worth_it(
    session: Session, planner: Planner, real: Calls, verdicts: dict[nn.Module, Verdict], tell: Tell
) -> dict[nn.Module, Verdict]:
    """Weigh every fused place in the mode that its module is in; the verdicts on what remains.

    Where ranks have to agree, rank 0 weighs and the others follow it.
    """
    if not alone() and this_rank():
        return verdicts
    scales = Scales()
    for _ in range(_ROUNDS):
        modules = list(verdicts if session.checker else dict.fromkeys(m for m, _ in planner.plans))
        beaten = [
            (module, found, words)
            for module in tell("weighing", modules, len(modules))
            for found, words in _weigh(planner, module, scales)
        ]
        if not beaten:
            break
        for module, found, words in beaten:
            _leave_out(session, planner, module, found, words)
        verdicts = session.check(planner, real)
    return verdicts


def _weigh(planner: Planner, module: nn.Module, scales: Scales) -> list[tuple[Found, str]]:
    """The places of a module that the original beats, and the words for it; the others are told their gain."""
    mode = module.training
    plans = {dropped: p for (m, (training, dropped)), p in planner.plans.items() if m is module and training is mode}
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
                beaten.append((found, weight.words))
            elif weight.words:
                _tell(planner, module, found, weight)
    return beaten


def _tell(planner: Planner, module: nn.Module, found: Found, weight: Weight) -> None:
    """Put the words to a place, in the plans for either mode."""
    for plan in [p for (m, _), p in planner.plans.items() if m is module]:
        plan.found = [
            replace(f, reason=weight.words, kernel=weight.kernel or f.kernel)
            if (f.rule, f.place, f.fused) == (found.rule, found.place, True) and f.excerpt is not None
            else f
            for f in plan.found
        ]


def _leave_out(session: Session, planner: Planner, module: nn.Module, found: Found, words: str) -> None:
    """Plan `module` again without a place, which both modes name alike but for the node."""
    state = session.states[module]
    mine = [(key, p) for key, p in planner.plans.items() if key[0] is module]
    for (_, (training, dropped)), plan in mine:
        state.left_out |= {f.key for f in plan.found if (f.rule, f.place) == (found.rule, found.place)}
        del planner.plans[module, (training, dropped)]
        planner.plan(module, training, dropped)
    file, line = (found.place.file, found.place.line) if found.place else ("", None)
    site = SiteReport(found.rule, state.name, "declined", words, file=file, line=line, advice=_ADVICE)
    session.ledger.note(site)
