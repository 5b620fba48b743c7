"""Combines repeated layers: "h.*.attn" for twelve of them. Sums their numbers, and does not draw them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

from autofuse.results.analysis import where
from autofuse.results.comparison import Interval
from autofuse.results.profile_parts import Layer, Place, PlaceStatus, Regime, Work
from autofuse.results.repeated_names import in_common, pattern_of, patterns_of

_N = TypeVar("_N", int, float)


@dataclass(frozen=True)
class RepeatedPlaces:
    """Equal places: one rule, one status and, if they are not fused, one reason.

    Attributes:
        seconds: the sum over the places that have it.
        predicted_saving: likewise.
        measured_saving: likewise.
        predicted_gain: the step's time before / after if all of them were fused.
        part_of: the larger place whose saving includes theirs.
    """

    name: str
    rule: str
    status: PlaceStatus
    reason: str
    operation: str
    count: int
    seconds: float | None
    predicted_saving: float | None
    measured_saving: float | None
    predicted_gain: float | None
    saved_bytes: int | None
    saved_flops: int | None
    where: str
    part_of: str = ""
    saving_range: Interval | None = None


@dataclass(frozen=True)
class RepeatedLayers:
    """Layers of one class whose names differ only in the numbers of repeated blocks; also a single layer.

    All numbers are sums of own times, without the modules that the layers call. roofline and sm_efficiency are means,
    weighted by own seconds, over the layers that have them. share: of the step's time.
    """

    name: str
    kind: str
    layers: tuple[Layer, ...]

    @property
    def count(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def forward(self) -> Work:
        """The work of the forward in one step: seconds, operators, FLOPs and bytes."""
        return reduce(Work.__add__, (layer.own_forward for layer in self.layers))

    @property
    def backward(self) -> Work:
        """The work of the backward in one step."""
        return reduce(Work.__add__, (layer.own_backward for layer in self.layers))

    @property
    def work(self) -> Work:
        """The work of forward, backward and optimizer in one step."""
        return reduce(Work.__add__, (layer.own_work for layer in self.layers))

    @property
    def seconds(self) -> float:
        """Seconds of forward and backward, modules below included."""
        return sum(layer.seconds for layer in self.layers)

    @property
    def share(self) -> float:
        """A fraction of the step's time."""
        return sum(own_share(layer) for layer in self.layers)

    @property
    def roofline(self) -> float | None:
        """The weighted mean of the layers' values."""
        return _mean((layer.roofline, layer.own_seconds) for layer in self.layers)

    @property
    def sm_efficiency(self) -> float | None:
        """The weighted mean of the layers' estimates."""
        return _mean((layer.sm_efficiency, layer.own_seconds) for layer in self.layers)

    @property
    def peak_bytes(self) -> int | None:
        """The bytes of the memory at the step's peak."""
        return _sum(layer.peak_bytes for layer in self.layers)

    @property
    def regime(self) -> Regime:
        """The limit of the layers that take most of the time."""
        seconds: defaultdict[Regime, float] = defaultdict(float)
        for layer in self.layers:
            seconds[layer.regime] += layer.own_seconds
        return max(seconds, key=lambda regime: seconds[regime])

    @property
    def places(self) -> tuple[RepeatedPlaces, ...]:
        """The places in the layers. Equal places are combined."""
        return folded_places([(self.name, place) for layer in self.layers for place in layer.places])


def own_share(layer: Layer) -> float:
    """The share of the step's time that the layer takes without the modules that it calls."""
    return layer.share * layer.own_seconds / layer.seconds if layer.seconds else 0.0


def fold_layers(layers: Sequence[Layer]) -> list[RepeatedLayers]:
    """The layers combined by class and pattern of name, the longest first."""
    patterns = patterns_of({layer.fqn: layer.kind for layer in layers})
    groups: defaultdict[tuple[str, str], list[Layer]] = defaultdict(list)
    for layer in layers:
        groups[patterns[layer.fqn], layer.kind].append(layer)
    folds = [RepeatedLayers(name, kind, tuple(members)) for (name, kind), members in groups.items()]
    return sorted(folds, key=lambda fold: -fold.work.seconds)


def folded_places(places: Iterable[tuple[str, Place]]) -> tuple[RepeatedPlaces, ...]:
    """Combine equal places of repeated layers. The largest predicted saving comes first, then the longest time."""
    groups: defaultdict[tuple[str, ...], list[Place]] = defaultdict(list)
    for name, place in places:
        # Places that are or would be fused are equal everywhere; places that are not fused differ by reason.
        reason = "" if place.status in ("applies", "fused") else pattern_of(place.reason)
        groups[name, place.rule, place.status, place.operation, reason, pattern_of(place.part_of)].append(place)
    folds = (_place_fold(key[0], members) for key, members in groups.items())
    return tuple(sorted(folds, key=lambda f: (-(f.predicted_saving or 0.0), -(f.seconds or 0.0))))


def _place_fold(name: str, places: list[Place]) -> RepeatedPlaces:
    first = places[0]
    reason = in_common([place.reason for place in places])
    part_of = in_common([place.part_of for place in places])
    return RepeatedPlaces(
        name, first.rule, first.status, reason, first.operation, len(places),
        _sum(p.seconds for p in places), _sum(p.predicted_saving for p in places),
        _sum(p.measured_saving for p in places), gain_together([p.predicted_gain for p in places]),
        _sum(p.saved_bytes for p in places), _sum(p.saved_flops for p in places),
        where(first.file, first.line), part_of, _sum_of_ranges([place.saving_range for place in places]),
    )  # fmt: skip


def _sum_of_ranges(ranges: Sequence[Interval | None]) -> Interval | None:
    """The range of a sum of places whose errors are the same; None if a place has no range."""
    known = [found for found in ranges if found is not None]
    if not known or len(known) < len(ranges):
        return None
    return Interval(sum(found.low for found in known), sum(found.high for found in known))


def gain_together(gains: Iterable[float | None]) -> float | None:
    """The gain of a step with several places fused: each saves 1 - 1/gain of the step, and the shares add up.

    None if no gain is known, or if the shares add up to the whole step, which is impossible.
    """
    saved = [1 - 1 / gain for gain in gains if gain]
    return 1 / (1 - sum(saved)) if saved and sum(saved) < 1 else None


def _sum(values: Iterable[_N | None]) -> _N | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def _mean(weighed: Iterable[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in weighed if value is not None]
    total = sum(weight for _, weight in known)
    if not total:
        return known[0][0] if known else None
    return sum(value * weight for value, weight in known) / total


def without_beginning(name: str) -> str:
    """A long name without its beginning, because names of layers differ at the end."""
    parts = name.split(".")
    while len(parts) > 1 and len(".".join(parts)) > _LONGEST_NAME:
        parts = parts[1:]
    short = ".".join(parts)
    return name if short == name else f"….{short}"


_LONGEST_NAME = 44  # characters, on a terminal
