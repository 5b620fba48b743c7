"""Reasons of the questions that a safe edit has to answer: the text shows that it would be wrong."""

from __future__ import annotations

from autofuse.reasons.reason import IN_SENTENCE, Code

OTHER_CODE_RUNS = Code(
    "other-code-runs",
    "A helper, child, attribute or function that the edit reads through is overridden in a subclass, or is assigned, "
    "patched or hooked elsewhere in the files that were given.",
    "`{name}` is not always the code that stands here",
    "rewrite it by hand where nothing changes `{name}`",
    "`{name}` is not always the code that stands here: {value} {how} it",
    IN_SENTENCE,
)
OTHER_MEANING = Code(
    "other-meaning",
    "The function is handed to something that reads it, or that calls it in place of one of torch's: a decomposition, "
    "a pattern, a kernel, a compiler that does not know the new call.",
    "the function is more than what it computes",
    "leave it as it is",
    "the function is more than what it computes: {value} {how}",
    IN_SENTENCE,
)
