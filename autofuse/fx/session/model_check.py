"""Checks a whole model, whose modules were checked separately, and rolls back modules until it equals the original.

The whole call runs forward and backward once. Evaluation of a model in training mode is compared on a part of the call.
Dropout is compared by its rates, because each module's dropout was sampled.

A difference has a name, such as the gradient of a parameter. The modules nearest to it are rolled back first, then
twice as many at each try.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from torch import nn

from autofuse.fx.session.internal_errors import one_line, reason_of_failure
from autofuse.fx.session.memory_room import UNCHECKED, room_to_check
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.trials import ForwardTrial
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.values import Untraceable
from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.verify.out_of_memory import is_out_of_memory
from autofuse.verify.slices import SHORT


@dataclass(frozen=True)
class ModelVerdict:
    """The result of checking a whole model.

    Attributes:
        unchecked: Why it could not be checked, or None.
        rolled_back: The modules that must run their originals.
        reason: Why they must.
    """

    unchecked: Reason | None = None
    rolled_back: tuple[nn.Module, ...] = ()
    reason: Reason | None = None


def check_model(model: nn.Module, call: ForwardArguments, planner: Planner) -> ModelVerdict:
    """Compare a fused model with the original, on copies. Find the modules to roll back until they agree.

    Args:
        model: The model with its fused forwards installed.
        call: The arguments of the call.
        planner: The plans.
    """
    room = room_to_check(model, call, planner.created_bytes.get(model), SHORT)
    if room.whole and room.part != "":
        return ModelVerdict(unchecked=because(outcomes.WHOLE_NOT_VERIFIED, why=f"{room.whole} {UNCHECKED}"))
    try:
        return _check_model(model, call, planner, room.whole)
    except Untraceable as error:
        return ModelVerdict(unchecked=because(outcomes.WHOLE_NOT_VERIFIED, why=str(error)))
    except Exception as error:
        if is_out_of_memory(error):
            why = f"memory ran out while checking the whole model ({one_line(error)})"
            return ModelVerdict(unchecked=because(outcomes.WHOLE_NOT_VERIFIED, why=why))
        running = tuple(m for m, s in planner.states.items() if s.full or s.narrow)
        return ModelVerdict(rolled_back=running, reason=reason_of_failure(error, "checking the whole model"))


def _check_model(model: nn.Module, call: ForwardArguments, planner: Planner, alone: str) -> ModelVerdict:
    with ForwardTrial(model, call, planner, length=SHORT, alone=alone, parts_checked=True) as trial:
        return _find_differing_modules(trial, planner, alone)


def _find_differing_modules(trial: ForwardTrial, planner: Planner, alone: str) -> ModelVerdict:
    running = [m for m, s in planner.states.items() if s.full or s.narrow]
    outcome = trial.outcome(running)
    if outcome.ok:
        return ModelVerdict()
    if alone and outcome.reason == alone:  # the part that fits into memory decides nothing
        return ModelVerdict(unchecked=because(outcomes.WHOLE_NOT_VERIFIED, why=f"{alone} {UNCHECKED}"))
    reason = because(outcomes.WHOLE_DIFFERS, why=outcome.reason)
    for candidates in _nearest_first(planner, running, outcome.culprit):
        remaining = [m for m in running if m not in candidates]
        if not remaining or trial.outcome(remaining).ok:
            return ModelVerdict(rolled_back=tuple(candidates), reason=reason)
    return ModelVerdict()


def _nearest_first(planner: Planner, modules: Sequence[nn.Module], culprit: str) -> Iterator[list[nn.Module]]:
    """The modules nearest to the difference: one, then two, four, ..., and all."""
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
