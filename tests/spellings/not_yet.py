"""Spellings that the FX pass or the codemod does not find yet, and why. A spelling that is found fails its test here.

(entry point, class) -> reason. The entry points are "live" (the FX pass), "text" (the codemod with --unsafe) and "safe"
(the codemod without it).
"""

from __future__ import annotations

_SHARES = "that two attributes of the module add up to one is not followed through its constructor"
_TWO = "a sum that is added in place and its norm together have two results, which the text writer does not place"

_EARLY = "scores that two returns share are needed by either as long as the other is not fused"

_AUTOFUSE: dict[str, str] = {
    "PreNormAddedInPlace": _TWO,
}
NOT_YET: dict[tuple[str, str], str] = {
    **{(entry_point, "EarlyReturn"): _EARLY for entry_point in ("text", "safe")},
    **{("text", name): reason for name, reason in _AUTOFUSE.items()},
    ("safe", "RelativePositionsOfQueries"): "the text does not show the rank of the mask",
    **{(entry_point, "SmoothedByConfidence"): _SHARES for entry_point in ("text", "safe")},
    ("live", "Indexed"): "an index that is a range is not written down by the trace",
}
