"""What changed layer by layer between two profiles, matched by fully qualified name. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autofuse.results.profile import Layer, Profile
from autofuse.results.table import Cell, Column, Table, Tone
from autofuse.results.units import duration

Kind = Literal["faster", "slower", "about the same", "new", "gone"]
# A layer's time comes from the few steps of a trace, and has no interval: less than this says nothing.
_OF_THE_LAYER, _OF_THE_STEP = 0.10, 0.01
_TONES: dict[Kind, Tone] = {"faster": "good", "slower": "bad", "about the same": "quiet", "new": "warn", "gone": "warn"}


@dataclass(frozen=True)
class Change:
    """One layer on both sides: seconds of forward and backward in one step, with all that it calls; None where it is
    not there, or is not called: what is fused into its parent is not."""

    fqn: str
    before: float | None
    after: float | None
    kind: Kind


def changes(before: Profile, after: Profile) -> tuple[Change, ...]:
    """Every layer that either profile names, the greatest difference first."""
    sides = [{layer.fqn: layer for layer in profile.layers} for profile in (before, after)]
    step = max((p.timing.median for p in (before, after) if p.timing.seconds), default=0.0)
    found = [_change(fqn, sides[0].get(fqn), sides[1].get(fqn), step) for fqn in dict.fromkeys([*sides[0], *sides[1]])]
    return tuple(sorted(found, key=lambda c: -abs((c.before or 0.0) - (c.after or 0.0))))


def _change(fqn: str, before: Layer | None, after: Layer | None, step: float) -> Change:
    if before is None or after is None:
        there = before or after
        assert there is not None
        kind: Kind = "new" if before is None else "gone"
        seconds = there.seconds
        return Change(fqn, None if before is None else seconds, None if after is None else seconds, kind)
    less = before.seconds - after.seconds
    if abs(less) <= max(_OF_THE_LAYER * before.seconds, _OF_THE_STEP * step):
        return Change(fqn, before.seconds, after.seconds, "about the same")
    return Change(fqn, before.seconds, after.seconds, "faster" if less > 0 else "slower")


def changes_table(found: tuple[Change, ...], most: int = 10, note: str = "") -> Table:
    """The layers that changed, the greatest difference first. note: what else is to be said of them."""
    told = [change for change in found if change.kind != "about the same"]
    columns = (Column("layer", wraps=True), Column("before", "right"), Column("after", "right"), Column("change"))
    rows = tuple(
        (Cell(c.fqn or "(the model)"), Cell(_shown(c.before)), Cell(_shown(c.after)), Cell(c.kind, _TONES[c.kind]))
        for c in told[:most]
    )
    rest = f"and {len(told) - most} more; " if len(told) > most else ""
    caption = (
        f"{rest}faster and slower: by more than {_OF_THE_LAYER:.0%} of the layer and {_OF_THE_STEP:.0%} of the step"
    )
    return Table("layers that changed, forward and backward", columns, rows, f"{caption}{note}")


def _shown(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)
