"""Reasons of the evidence about values: what the text shows to be no torch tensor, or to be seen by others."""

from __future__ import annotations

from autofuse.reasons.reason import Code

OTHER_ARRAY = Code(
    "array-of-another-library",
    "What would be an operand is no torch tensor: an annotation, what made it, or a test says so.",
    "an operand is an array of another library, not a torch tensor",
    "",
    "{value} is an array of another library, not a torch tensor",
)
