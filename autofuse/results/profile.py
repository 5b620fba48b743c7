"""The profile of a training step. Plain data, without torch and without measuring.

Its parts are in autofuse/results/profile_parts.py and can be imported from here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autofuse.results.collective_rate import CollectiveRate
from autofuse.results.comparison import Category
from autofuse.results.data import Malformed, dumped, loaded
from autofuse.results.diagnosis import Action, Diagnosis
from autofuse.results.kernel_totals import KernelTotal
from autofuse.results.ladder import Level
from autofuse.results.profile_parts import (
    COMMUNICATION,
    OPTIMIZER,
    OUTSIDE,
    Attribution,
    Flops,
    Layer,
    Memory,
    Place,
    PlaceStatus,
    Power,
    Probe,
    Rank,
    RankSteps,
    Regime,
    Roof,
    Share,
    Span,
    Timing,
    Work,
)
from autofuse.results.shown import Shown, drawing

__all__ = [
    "COMMUNICATION",
    "FORMAT_VERSION",
    "OPTIMIZER",
    "OUTSIDE",
    "Action",
    "Attribution",
    "CollectiveRate",
    "Diagnosis",
    "Flops",
    "KernelTotal",
    "Layer",
    "Memory",
    "Place",
    "PlaceStatus",
    "Power",
    "Probe",
    "Profile",
    "Rank",
    "RankSteps",
    "Regime",
    "Roof",
    "Share",
    "Span",
    "Timing",
    "Work",
]

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Profile(Shown):
    """The measurements of one model or step.

    Attributes:
        name: what was profiled.
        kind: "live", "script" or "trace".
        categories: the operators or kernels of one step, by category.
        kernels: each of them by name.
        losses: the loss of each step that ran, if known.
        rank_steps: for the traces of a job: the seconds of each step of each rank, and of its waits.
        notes: sentences that readers of the numbers should know.
        diagnosis: what limits the step, and what to do.
    """

    name: str
    timing: Timing
    ladder: tuple[Level, ...]
    layers: tuple[Layer, ...] = ()
    kind: Literal["live", "script", "trace"] = "live"
    memory: Memory = field(default_factory=Memory)
    shares: tuple[Share, ...] = ()
    flops: Flops = field(default_factory=Flops)
    roof: Roof = field(default_factory=Roof)
    power: Power = field(default_factory=Power)
    probe: Probe = field(default_factory=Probe)
    attribution: Attribution = field(default_factory=Attribution)
    categories: Mapping[str, Category] = field(default_factory=dict)
    timeline: tuple[Span, ...] = ()
    ranks: tuple[Rank, ...] = ()
    rank_steps: tuple[RankSteps, ...] = ()
    collectives: tuple[CollectiveRate, ...] = ()
    losses: tuple[float, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    kernels: tuple[KernelTotal, ...] = ()
    trace_file: str = ""  # the Chrome trace that belongs to it, relative to the JSON file

    def level(self, name: str) -> Level:
        """The level of utilisation with that name, for example "mfu". Raises KeyError if there is none."""
        return {level.name: level for level in self.ladder}[name]

    rung = level  # an earlier name

    def layer(self, fqn: str) -> Layer:
        """The layer of that name. Raises KeyError if there is none."""
        return {layer.fqn: layer for layer in self.layers}[fqn]

    @property
    def places(self) -> tuple[tuple[Layer, Place], ...]:
        """Each place with its layer. The largest predicted saving is first; places without a prediction are last."""
        found = [(layer, place) for layer in self.layers for place in layer.places]
        return tuple(sorted(found, key=lambda pair: -(pair[1].predicted_saving or 0.0)))

    def to_dict(self) -> dict[str, Any]:
        """`version` and `type` "profile", then each field under its own name. See docs/json.md."""
        return {"version": FORMAT_VERSION, "type": "profile", **dumped(self)}

    def to_html(self) -> str:
        """The page that `autofuse profile` writes: one text, to be saved as UTF-8, that needs no other file."""
        return str(drawing().page(self))

    @classmethod
    def from_dict(cls, data: Any) -> Profile:
        """The profile that to_dict() made, in this or an earlier version.

        Raises:
            Malformed: The data is not from to_dict().
        """
        if not isinstance(data, Mapping) or data.get("type") != "profile":
            raise Malformed(
                'This is not a profile, because it has no "type": "profile". `autofuse profile` writes profiles.'
            )
        if data.get("version") != FORMAT_VERSION:
            raise Malformed(
                f"This profile has format version {data.get('version')!r}, and this autofuse reads version "
                f"{FORMAT_VERSION}: read it with the autofuse that wrote it, or profile again."
            )
        return loaded(cls, data)
