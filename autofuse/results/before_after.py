"""A model before and after optimize: two profiles, the comparison of steps, and the saving of each place.

Plain data. This file depends neither on torch nor on how anything was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autofuse.results.comparison import Comparison
from autofuse.results.profile import Profile
from autofuse.results.profile_parts import Layer, Place
from autofuse.results.shown import Shown, drawing

FORMAT_VERSION = 1


@dataclass(frozen=True)
class BeforeAfter(Shown):
    """The result of optimize(model, inputs, profile=True): autofuse.report(model).profile.

    Attributes:
        before: the profile of the original model. Its fused places have measured times.
        after: the profile of the optimized model, with the model FLOPs of the original.
        comparison: whole steps of both models, interleaved in one process.
    """

    before: Profile
    after: Profile
    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        """`version` and `type` "before-after", then each part under its own name. See docs/json.md."""
        return {
            "version": FORMAT_VERSION,
            "type": "before-after",
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "comparison": self.comparison.to_dict(),
        }

    def to_html(self, diff: str = "") -> str:
        """One page with both models next to each other, to be saved as UTF-8. `diff`: the changes as a unified diff."""
        return str(drawing().page(self, diff))


Seconds = Mapping[str, float]  # seconds of each layer by name, forward and backward, without the modules that it calls


def with_measured_savings(before: Profile, after: Profile, now: Seconds, then: Seconds) -> tuple[Profile, Profile]:
    """Both profiles; the places of `before` with their status and the measured seconds of their fused operations.

    The two profiles were taken one after the other, and a shared machine may be slower a minute later. So savings come
    from interleaved steps. The saving of a place is the time that its layers save. Places that share a layer divide its
    saving in proportion to their predictions.

    Args:
        before: the profile of the original model.
        after: the profile of the optimized model.
        now: seconds of each layer before, from interleaved steps.
        then: seconds of each layer after, from interleaved steps.
    """
    became = {_key(layer, place): place for layer in after.layers for place in layer.places}
    layers = [
        replace(layer, places=tuple(_outcome(place, became.get(_key(layer, place))) for place in layer.places))
        for layer in before.layers
    ]
    saved = dict(_savings(layers, now, then))
    layers = [_with_seconds(layer, saved) for layer in layers]
    known = {_key(layer, place): place for layer in layers for place in layer.places}
    fused = tuple(
        replace(layer, places=tuple(known.get(_key(layer, place), place) for place in layer.places))
        for layer in after.layers
    )
    return replace(before, layers=tuple(layers)), replace(after, layers=fused)


def _key(layer: Layer, place: Place) -> tuple[str, str, str, int | None]:
    return layer.fqn, place.rule, place.file, place.line


def _outcome(place: Place, found: Place | None) -> Place:
    """The place with its status after optimize."""
    if found is None or found.status == place.status:
        return place
    reason = found.reason if found.status != "fused" or not place.part_of else place.reason
    return replace(place, status=found.status, reason=reason, reason_code=found.reason_code)


def _savings(layers: Sequence[Layer], now: Seconds, then: Seconds) -> Iterator[tuple[int, float]]:
    """The seconds that each place saved, by the identity of the place, in the time of its profile."""
    own = {layer.fqn: layer.own_seconds for layer in layers}
    for group in _groups_that_share_layers(layers):
        names = {name for place in group for name in place.layers}
        was, became = (sum(side.get(name, 0.0) for name in names) for side in (now, then))
        less = sum(own.get(name, 0.0) for name in names) * (1 - became / was) if was else 0.0
        weights = [max(place.predicted_saving or 0.0, 0.0) for place in group]
        whole = sum(weights)
        for place, weight in zip(group, weights, strict=True):
            yield id(place), less * (weight / whole if whole else 1 / len(group))


def _groups_that_share_layers(layers: Sequence[Layer]) -> list[list[Place]]:
    """Groups of fused places, so that places of different groups have no layer in common."""
    groups: list[tuple[set[str], list[Place]]] = []
    for place in (p for layer in layers for p in layer.places if p.status == "fused" and not p.part_of and p.layers):
        touching = [group for group in groups if group[0] & set(place.layers)]
        groups = [group for group in groups if group not in touching]
        names = set(place.layers).union(*(group[0] for group in touching))
        groups.append((names, [*(p for group in touching for p in group[1]), place]))
    return [places for _, places in groups]


def _with_seconds(layer: Layer, saved: Mapping[int, float]) -> Layer:
    places = tuple(
        replace(place, measured_seconds=max(0.0, place.seconds - saved[id(place)]))
        if id(place) in saved and place.seconds is not None
        else place
        for place in layer.places
    )
    return replace(layer, places=places)
