"""What profiling a training step found, whole. Plain data: it knows neither torch nor how to measure.

Its parts are in autofuse/results/profile_parts.py, and have their names here too: whoever fills a profile needs both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autofuse.results.collective_rate import CollectiveRate
from autofuse.results.comparison import Category
from autofuse.results.data import Malformed, dumped, loaded
from autofuse.results.diagnosis import Action, Diagnosis
from autofuse.results.ladder import Rung
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
    """One model or step, measured. `name`: what was profiled. `kind`: "live", "script", or "trace" (from elsewhere).

    categories: operators or kernels of one step by category. losses: the loss of every step that was run, if known.
    rank_steps: of a job's traces, how long each step of each rank was, and for how much of it it waited.
    notes: sentences that whoever reads the numbers should know. diagnosis: what limits the step, and what to do.
    """

    name: str
    timing: Timing
    ladder: tuple[Rung, ...]
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
    trace_file: str = ""  # the Chrome trace that belongs to it, relative to the JSON file

    def rung(self, name: str) -> Rung:
        """The rung of that name. Raises KeyError where there is none."""
        return {rung.name: rung for rung in self.ladder}[name]

    def layer(self, fqn: str) -> Layer:
        """The layer of that name. Raises KeyError where there is none."""
        return {layer.fqn: layer for layer in self.layers}[fqn]

    @property
    def places(self) -> tuple[tuple[Layer, Place], ...]:
        """Every place with its layer, the greatest predicted saving first; those without one last."""
        found = [(layer, place) for layer in self.layers for place in layer.places]
        return tuple(sorted(found, key=lambda pair: -(pair[1].predicted_saving or 0.0)))

    def to_dict(self) -> dict[str, Any]:
        """`version` first, `type` "profile", then every field under its own name. See docs/json.md."""
        return {"version": FORMAT_VERSION, "type": "profile", **dumped(self)}

    def to_html(self) -> str:
        """The page that `autofuse profile` writes: one text, to be saved as UTF-8, that needs nothing but itself."""
        return str(drawing().page(self))

    @classmethod
    def from_dict(cls, data: Any) -> Profile:
        """What to_dict() made, of this version or of an earlier autofuse's. Raises Malformed for anything else."""
        if not isinstance(data, Mapping) or data.get("type") != "profile":
            raise Malformed(
                'This is not a profile: there is no "type": "profile" in it. `autofuse profile` writes them.'
            )
        if data.get("version") != FORMAT_VERSION:
            raise Malformed(
                f"This profile has format version {data.get('version')!r}, and this autofuse reads version "
                f"{FORMAT_VERSION}: read it with the autofuse that wrote it, or profile again."
            )
        return loaded(cls, data)
