"""Computes which part of the forward's and the backward's time is attributed to modules, and explains the rest.

Time that belongs to no module counts on neither side: the backward of operators that ran outside every module (the
loss), and communication, which serves many modules at once. All other time counts. Time without a known owner counts as
not attributed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autofuse.profiling.trace.event_owners import NAMELESS, Owned
from autofuse.profiling.trace.intervals import length
from autofuse.profiling.trace.owned_time import OwnedTime
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.work import Phase
from autofuse.results.profile import COMMUNICATION, OPTIMIZER, OUTSIDE, Attribution

_NO_MODULE = (OUTSIDE, OPTIMIZER, COMMUNICATION)
_NOTABLE = 0.05  # of the step's time


def attribution_of(pieces: Sequence[OwnedTime], owned: Sequence[Owned], scope: Scope) -> Attribution:
    """Return the attributed fractions and notes. A fraction is None for a phase in which no module ran."""
    calls = [one for one in owned if one.is_call]
    notes = [_unnamed_note(calls), _unknown_note(pieces), _overlap_note(pieces, scope)]
    notes += [_compiled_note(pieces), _loss_note(pieces)] if calls else []
    return Attribution(
        _attributed_fraction(pieces, "forward"),
        _attributed_fraction(pieces, "backward"),
        notes=tuple(filter(None, notes)),
    )


def _attributed_fraction(pieces: Sequence[OwnedTime], phase: Phase) -> float | None:
    attributed = sum(p.time for p in pieces if p.phase == phase and p.owner not in (None, *_NO_MODULE))
    unknown = sum(p.time for p in pieces if p.phase == phase and p.owner is None)
    return attributed / (attributed + unknown) if attributed + unknown else None


def _share_of(pieces: Sequence[OwnedTime], some: Sequence[OwnedTime]) -> float:
    whole = sum(p.time for p in pieces)
    return sum(p.time for p in some) / whole if whole else 0.0


def _unnamed_note(calls: Sequence[Owned]) -> str:
    if not calls:
        return (
            "The trace has no calls of modules, so all of its time is outside: record it with autofuse.profile, "
            "or with torch.profiler.profile(with_stack=True)."
        )
    if calls[0].event.name.startswith(NAMELESS):
        return (
            "The trace names modules by their class (with_stack=True). So a module's name here is not its name in the "
            "model: it is the path of the classes that called it first, each numbered among those of its class."
        )
    return ""


def _compiled_note(pieces: Sequence[OwnedTime]) -> str:
    compiled = [p for p in pieces if p.compiled]
    if not compiled:
        return ""
    where = Counter[str]()
    for piece in compiled:
        where[piece.owner if piece.owner is not None else OUTSIDE] += piece.time
    named = ", ".join(name or "the model itself" for name, _ in where.most_common(3))
    return (
        f"{_share_of(pieces, compiled):.0%} of the time lies in code that torch.compile generated ({named}). Compiled "
        "modules make no calls, so all of this time counts for the module that was compiled. To see the layers below, "
        "profile the model without torch.compile."
    )


def _unknown_note(pieces: Sequence[OwnedTime]) -> str:
    unknown = [p for p in pieces if p.owner is None]
    if not unknown:
        return ""
    return (
        f"{_share_of(pieces, unknown):.1%} of the time has no known owner and counts as outside: its forward, or the "
        "launch of its kernels, is not in the trace."
    )


def _overlap_note(pieces: Sequence[OwnedTime], scope: Scope) -> str:
    """Layers' seconds are those of their kernels. So their sum exceeds the elapsed time where kernels overlap."""
    kernels = [p for p in pieces if p.kernel is not None]
    summed = sum(p.time for p in kernels)
    passed = length(scope.moments(p.kernel for p in kernels if p.kernel is not None))
    if summed - passed < _NOTABLE * scope.steps.nanoseconds:
        return ""
    return (
        f"Kernels of several streams or GPUs overlap. The layers' times add up to {scope.share(summed):.0%} of the "
        f"step, but only {scope.share(passed):.0%} of it passes, so the layers' shares do not add up to 100 %."
    )


def _loss_note(pieces: Sequence[OwnedTime]) -> str:
    backward = [p for p in pieces if p.phase == "backward"]
    loss = _share_of(backward, [p for p in backward if p.owner == OUTSIDE])
    if loss < _NOTABLE:
        return ""
    return (
        f"{loss:.0%} of the backward's time belongs to operators that ran outside every module, such as the loss. It "
        "is listed as outside and is left out of the attributed fraction."
    )
