"""Reasons of the evidence about code: the files show that an edit would be wrong."""

from __future__ import annotations

from autofuse.reasons.reason import IN_SENTENCE, Code

OTHER_CODE_RUNS = Code(
    "other-code-runs",
    "A subclass overrides a helper, child, attribute or function that the edit depends on, or other code in the given "
    "files assigns, patches or hooks it.",
    "`{name}` is not always what the code here shows",
    "if nothing changes `{name}` in your program, rewrite it by hand",
    "`{name}` is not always what the code here shows: {value} {how} it",
    IN_SENTENCE,
)
OTHER_MEANING = Code(
    "other-meaning",
    "The function is passed to code that reads its source, or that calls it in place of a torch function: a "
    "decomposition, a pattern, a kernel, or a compiler that does not know the new call.",
    "other code uses the function for more than its result",
    "leave it as it is",
    "other code uses the function for more than its result: {value} {how}",
    IN_SENTENCE,
)
