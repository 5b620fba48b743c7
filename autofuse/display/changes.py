"""The changes between two profiles, by layer and by kernel, matched by name. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autofuse.results.profile import Layer, Profile
from autofuse.results.table import Cell, Column, Table, Tone
from autofuse.results.units import duration

Kind = Literal["faster", "slower", "about the same", "new", "gone"]
# A layer's time comes from a few recorded steps: a smaller difference is not a change.
_OF_THE_LAYER, _OF_THE_STEP = 0.10, 0.01
_TONES: dict[Kind, Tone] = {"faster": "good", "slower": "bad", "about the same": "quiet", "new": "warn", "gone": "warn"}


@dataclass(frozen=True)
class Change:
    """One layer in both profiles.

    Attributes:
        before: seconds of one step, with everything that the layer calls. None if the layer does not exist or is not
            called, for example because it is fused into its parent.
        after: likewise.
    """

    fqn: str
    before: float | None
    after: float | None
    kind: Kind


def changes(before: Profile, after: Profile) -> tuple[Change, ...]:
    """All layers that either profile names, the largest difference first."""
    sides = [{layer.fqn: layer for layer in profile.layers} for profile in (before, after)]
    step = _longer_median_step(before, after)
    found = [_change(fqn, sides[0].get(fqn), sides[1].get(fqn), step) for fqn in dict.fromkeys([*sides[0], *sides[1]])]
    return tuple(sorted(found, key=lambda c: -abs((c.before or 0.0) - (c.after or 0.0))))


@dataclass(frozen=True)
class KernelChange:
    """One kernel (on a CPU, one operator) on both sides.

    Attributes:
        before: seconds of one step; None if it does not run.
        after: likewise.
        count_before: how often it runs in one step, on average.
        count_after: likewise.
    """

    name: str
    before: float | None
    after: float | None
    count_before: float
    count_after: float
    kind: Kind


def kernel_changes(before: Profile, after: Profile) -> tuple[KernelChange, ...]:
    """All kernels of either profile, the largest difference first."""
    sides: list[dict[str, tuple[float, float]]] = []
    for profile in (before, after):
        side: dict[str, tuple[float, float]] = {}
        for kernel in profile.kernels:  # one name may be in two categories: an operator also runs in the optimizer
            seconds, count = side.get(kernel.name, (0.0, 0.0))
            side[kernel.name] = seconds + kernel.seconds, count + kernel.count
        sides.append(side)
    step = _longer_median_step(before, after)
    found = [_kernel_change(name, sides[0].get(name), sides[1].get(name), step) for name in {**sides[0], **sides[1]}]
    return tuple(sorted(found, key=lambda c: -abs((c.before or 0.0) - (c.after or 0.0))))


def _kernel_change(
    name: str, before: tuple[float, float] | None, after: tuple[float, float] | None, step: float
) -> KernelChange:
    (one, count_before), (other, count_after) = before or (None, 0.0), after or (None, 0.0)
    return KernelChange(name, one, other, count_before, count_after, _kind_of_change(one, other, step))


def _longer_median_step(before: Profile, after: Profile) -> float:
    return max((p.timing.median for p in (before, after) if p.timing.seconds), default=0.0)


def _kind_of_change(before: float | None, after: float | None, step: float) -> Kind:
    if before is None or after is None:
        return "new" if before is None else "gone"
    if abs(before - after) <= max(_OF_THE_LAYER * before, _OF_THE_STEP * step):
        return "about the same"
    return "faster" if before > after else "slower"


def _change(fqn: str, before: Layer | None, after: Layer | None, step: float) -> Change:
    seconds = [None if layer is None else layer.seconds for layer in (before, after)]
    return Change(fqn, seconds[0], seconds[1], _kind_of_change(seconds[0], seconds[1], step))


def changes_table(found: tuple[Change, ...], most: int = 10, note: str = "") -> Table:
    """The layers that changed, the largest difference first. note: added to the caption."""
    described = [change for change in found if change.kind != "about the same"]
    columns = (Column("layer", wraps=True), Column("before", "right"), Column("after", "right"), Column("change"))
    rows = tuple(
        (
            Cell(c.fqn or "(the model)"),
            Cell(_duration(c.before)),
            Cell(_duration(c.after)),
            Cell(c.kind, _TONES[c.kind]),
        )
        for c in described[:most]
    )
    rest = f"and {len(described) - most} more; " if len(described) > most else ""
    caption = (
        f"{rest}faster and slower: by more than {_OF_THE_LAYER:.0%} of the layer and {_OF_THE_STEP:.0%} of the step"
    )
    return Table("layers that changed, forward and backward", columns, rows, f"{caption}{note}")


def kernel_changes_table(found: tuple[KernelChange, ...], most: int = 10, note: str = "") -> Table:
    """The kernels that changed by over a hundredth of the step, or exist on one side only, the largest first."""
    described = [change for change in found if change.kind != "about the same"]
    columns = (
        Column("kernel", wraps=True), Column("before", "right"), Column("after", "right"),
        Column("calls before", "right"), Column("calls after", "right"), Column("change"),
    )  # fmt: skip
    rows = tuple(
        (
            Cell(c.name), Cell(_duration(c.before)), Cell(_duration(c.after)), Cell(f"{c.count_before:g}"),
            Cell(f"{c.count_after:g}"), Cell(c.kind, _TONES[c.kind]),
        )
        for c in described[:most]
    )  # fmt: skip
    rest = f"and {len(described) - most} more; " if len(described) > most else ""
    return Table("kernels that changed, of one step", columns, rows, f"{rest}as for layers{note}")


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)
