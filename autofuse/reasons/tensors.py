"""Reasons of the evidence about values: what the text shows to be no torch tensor, or to be seen by others."""

from __future__ import annotations

from autofuse.reasons.reason import IN_SENTENCE, Code

OTHER_ARRAY = Code(
    "array-of-another-library",
    "What would be an operand is no torch tensor: an annotation, what made it, or a test says so.",
    "an operand is an array of another library, not a torch tensor",
    "",
    "{value} is an array of another library, not a torch tensor",
)
TEXT_SHOWN = Code(
    "text-is-shown",
    'An f-string prints the text of an expression that would change: `f"{scores.shape=}"`.',
    "an f-string prints the text of an expression that would change",
    "write the text out and print the value alone",
)
CALLED_TWICE = Code(
    "called-twice",
    "A call that may do more than return a value would be made twice.",
    "`{call}()` would be called more often than it is",
    "give what it returns a name first",
)
OTHERWISE_GIVEN = Code(
    "otherwise-given",
    "A call in the file gives the function what it takes as it is written, and the fused call does not: integers for "
    "an activation, a tensor for a scale, a vector for a query, a mask that is larger than the scores.",
    "a call in the file gives `{name}` {what}",
    "rewrite it by hand where no caller does so",
    "{value} gives `{name}` {what}",
    IN_SENTENCE,
)
