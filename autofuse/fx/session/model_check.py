"""Whether a model whose modules hold by themselves holds as a whole; if not, what is taken back until it does.

What differs has a name, such as the gradient of a parameter: modules near to it go first, then twice as many each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from torch import nn

from autofuse.fx.session.internal_errors import in_a_line, reason_of_failure
from autofuse.fx.session.memory_room import UNCHECKED, room_to_check
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.trials import ForwardTrial
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.verify.out_of_memory import is_out_of_memory
from autofuse.verify.slices import SHORT


@dataclass(frozen=True)
class ModelVerdict:
    """What checking the whole model said. `unchecked`: why it could not be checked. `taken_back`: modules that have to
    run their originals, and `reason`, why."""

    unchecked: Reason | None = None
    taken_back: tuple[nn.Module, ...] = ()
    reason: Reason | None = None


def check_model(model: nn.Module, call: ForwardArguments, planner: Planner) -> ModelVerdict:
    """Compare `model` as it runs now with the original, on copies; find what has to go until they agree."""
    room = room_to_check(model, call, planner.made.get(model), SHORT)
    if room.whole and room.part != "":
        return ModelVerdict(unchecked=because(outcomes.WHOLE_NOT_VERIFIED, why=f"{room.whole} {UNCHECKED}"))
    try:
        return _checked(model, call, planner, room.whole)
    except Exception as error:
        if is_out_of_memory(error):
            why = f"memory ran out while checking the whole model ({in_a_line(error)})"
            return ModelVerdict(unchecked=because(outcomes.WHOLE_NOT_VERIFIED, why=why))
        running = tuple(m for m, s in planner.states.items() if s.full or s.narrow)
        return ModelVerdict(taken_back=running, reason=reason_of_failure(error, "checking the whole model"))


def _checked(model: nn.Module, call: ForwardArguments, planner: Planner, alone: str) -> ModelVerdict:
    with ForwardTrial(model, call, planner, length=SHORT, alone=alone) as trial:
        return _judged(trial, planner, alone)


def _judged(trial: ForwardTrial, planner: Planner, alone: str) -> ModelVerdict:
    running = [m for m, s in planner.states.items() if s.full or s.narrow]
    outcome = trial.outcome(running)
    if outcome.ok:
        return ModelVerdict()
    if alone and outcome.reason == alone:  # the part that there is room for cannot tell
        return ModelVerdict(unchecked=because(outcomes.WHOLE_NOT_VERIFIED, why=f"{alone} {UNCHECKED}"))
    reason = because(outcomes.WHOLE_DIFFERS, why=outcome.reason)
    for taken in _nearest_first(planner, running, outcome.culprit):
        left = [m for m in running if m not in taken]
        if not left or trial.outcome(left).ok:
            return ModelVerdict(taken_back=tuple(taken), reason=reason)
    return ModelVerdict()


def _nearest_first(planner: Planner, modules: Sequence[nn.Module], culprit: str) -> Iterator[list[nn.Module]]:
    """The modules nearest to what differs: one, then two, four, ... and all of them."""
    name = culprit.rpartition("self.")[2].split(".")

    def nearness(module: nn.Module) -> int:
        mine = planner.states[module].name.split(".")
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(mine, name, strict=False)))

    ordered = sorted(modules, key=nearness, reverse=True)
    count = 1
    while count < len(ordered):
        yield ordered[:count]
        count *= 2
    yield ordered
