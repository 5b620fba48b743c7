"""The quantities of layers that conditions may name: "layer_share[h.*.attn]". No torch.

Layers are named as in the layer table: "*" stands for one part of a name, "" for the model itself. The quantities of
several layers are summed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

from autofuse.results.comparison import Estimate, Interval
from autofuse.results.conditions import NotACondition, Quantity
from autofuse.results.difference import BETWEEN_RUNS
from autofuse.results.profile import Layer, Profile

_ASKED = re.compile(r"(\w+)\[(.*)\]")
MEANINGS = {
    "layer_seconds": "seconds of the layers, including everything below them",
    "layer_own_seconds": "seconds of the layers without the modules that they call",
    "layer_share": "share of the step, including everything below the layers",
    "layer_ratio": "seconds of the layers, after / before: above 1 is slower",
}
_NO_BASELINE = "there is nothing to compare with: pass --baseline with an earlier profile.json"


class KnownQuantities(Mapping[str, Quantity]):
    """Quantities by name. The quantities of layers are computed on request.

    A layer that no profile has raises NotACondition, because a misspelt name must not count as undecided. If the
    profiles have no layers at all, the quantity is unknown.
    """

    def __init__(
        self,
        known: Mapping[str, Quantity],
        after: Profile,
        before: Profile | None = None,
        ratio: Estimate | None = None,
    ) -> None:
        """ratio: the step's time before / after. The time of a layer is at least as uncertain as that of the step."""
        self._known, self._after, self._before, self._ratio = known, after, before, ratio

    def __getitem__(self, name: str) -> Quantity:
        found = _ASKED.fullmatch(name)
        if found is None or found[1] not in MEANINGS:
            return self._known[name]
        return self._quantity_of_layers(found[1], found[2].strip())

    def __iter__(self) -> Iterator[str]:
        yield from self._known
        yield from (f"{name}[LAYER]" for name in MEANINGS)

    def __len__(self) -> int:
        return len(self._known) + len(MEANINGS)

    def __contains__(self, name: object) -> bool:
        found = _ASKED.fullmatch(str(name))
        return found[1] in MEANINGS if found else name in self._known

    def _quantity_of_layers(self, what: str, pattern: str) -> Quantity:
        after, before = _matching_layers(self._after, pattern), _matching_layers(self._before, pattern)
        profiles = [profile for profile in (self._after, self._before) if profile is not None]
        if not after and not before and any(profile.layers for profile in profiles):
            raise NotACondition(_no_such_layer(pattern, profiles))
        if what == "layer_ratio":
            return _ratio(before, after, self._before is not None, self._ratio)
        meaning = MEANINGS[what]
        if not after:
            return Quantity(meaning, reason="the profile has no such layers")
        field = {"layer_seconds": "seconds", "layer_own_seconds": "own_seconds", "layer_share": "share"}[what]
        value = sum(float(getattr(layer, field)) for layer in after)
        return Quantity(
            meaning, value, _share_interval(after) if field == "share" else _interval_around(value, BETWEEN_RUNS)
        )


def _ratio(before: Sequence[Layer], after: Sequence[Layer], has_baseline: bool, step: Estimate | None) -> Quantity:
    meaning = MEANINGS["layer_ratio"]
    if not has_baseline:
        return Quantity(meaning, reason=_NO_BASELINE)
    least, most = (sum(layer.seconds for layer in side) for side in (before, after))
    if not before or not after or not least:
        return Quantity(meaning, reason="the layers are not on both sides, or take no time")
    errors = [BETWEEN_RUNS]
    if step is not None and step.interval.low > 0:
        errors += [step.interval.high / step.ratio - 1, step.ratio / step.interval.low - 1]
    return Quantity(meaning, most / least, _interval_around(most / least, max(errors)))


def _share_interval(layers: Sequence[Layer]) -> Interval:
    """The interval of a sum of shares: the sum of the ends, as if all layers erred in the same direction."""
    ends = [layer.share_interval or _interval_around(layer.share, BETWEEN_RUNS) for layer in layers]
    return Interval(sum(end.low for end in ends), sum(end.high for end in ends))


def _interval_around(value: float, error: float) -> Interval:
    """The interval of a layer's time. It comes from a few steps, so its error is that between two separate runs."""
    return Interval(value / (1 + error), value * (1 + error))


def _matching_layers(profile: Profile | None, pattern: str) -> list[Layer]:
    """The layers that a name or a pattern matches."""
    wanted = re.compile("[^.]+".join(map(re.escape, pattern.split("*"))))
    return [layer for layer in profile.layers if wanted.fullmatch(layer.fqn)] if profile else []


def _no_such_layer(pattern: str, profiles: Sequence[Profile]) -> str:
    names = dict.fromkeys(layer.fqn for profile in profiles for layer in profile.layers)
    close = difflib.get_close_matches(pattern, names, 3) or list(names)[:8]
    return f"No layer is named {pattern!r}. Layers are named as in the layer table, for example {', '.join(close)}."
