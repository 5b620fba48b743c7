"""Whether a model whose modules hold by themselves holds as a whole; if not, what is taken back until it does.

What differs has a name, such as the gradient of a parameter: modules near to it go first, then twice as many each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from torch import nn

from autofuse.fx.session.memory_room import lack_of_room
from autofuse.fx.session.site_checks import copied, install_relaxed
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.twin import copied_object
from autofuse.results.sites import SiteReport
from autofuse.verify.modules import ModuleReference, Verification

if TYPE_CHECKING:
    from autofuse.fx.session.session import Session


def check_whole(session: Session, model: nn.Module, call: ForwardArguments) -> None:
    """Compare `model` as it runs now with the original, on copies; take modules back until they agree."""
    if why := lack_of_room(model):
        session.ledger.note(SiteReport("", "", "declined", f"only its parts were verified: {why}"))
        return
    reference = ModuleReference(copied(model, {}), *call, copy_object=copied_object)
    running = [m for m, s in session.states.items() if s.full or s.narrow]
    outcome = _outcome(session, model, reference, running)
    if outcome.ok:
        return
    reason = f"the whole model differs: {outcome.reason}"
    for taken in _nearest_first(session, running, outcome.culprit):
        left = [m for m in running if m not in taken]
        if not left or _outcome(session, model, reference, left).ok:
            session.roll_back(reason, taken)
            return


def _outcome(
    session: Session, model: nn.Module, reference: ModuleReference, running: Sequence[nn.Module]
) -> Verification:
    """Whether a copy in which these modules run their variants computes the same."""
    made: dict[nn.Module, nn.Module] = {}
    rewritten = copied(model, made)
    if session.planner is not None:
        install_relaxed(session.planner, running, {m: made[m] for m in running if m in made})
    return reference.check(rewritten)


def _nearest_first(session: Session, modules: Sequence[nn.Module], culprit: str) -> Iterator[list[nn.Module]]:
    """The modules nearest to what differs: one, then two, four, ... and all of them."""
    name = culprit.rpartition("self.")[2].split(".")

    def nearness(module: nn.Module) -> int:
        mine = session.states[module].name.split(".")
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(mine, name, strict=False)))

    ordered = sorted(modules, key=nearness, reverse=True)
    count = 1
    while count < len(ordered):
        yield ordered[:count]
        count *= 2
    yield ordered
