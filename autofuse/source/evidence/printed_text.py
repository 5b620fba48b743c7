"""Does the program print its own source? `f"{s.shape=}"` prints the expression, so the edit must not change it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.reasons import tensors
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.place.edits import is_inside, span_of


def check_printed_text(claim: Claim) -> Iterator[Missing | Fails]:
    """Fail if the edit changes an expression inside an f-string that prints the source of the expression."""
    printed = [span_of(n) for n in walk(claim.captured.function) if isinstance(n, ast.JoinedStr) and _prints_source(n)]
    for span, _ in claim.edit.replacements if printed else ():
        if any(is_inside(span, outer) for outer in printed):
            yield Fails(because(tensors.TEXT_SHOWN))


def _prints_source(node: ast.JoinedStr) -> bool:
    """Whether the f-string has a part `{expression=}`. The parser keeps the source text in the preceding constant."""
    before = ""
    for part in node.values:
        if isinstance(part, ast.FormattedValue) and before.endswith("="):
            if before[:-1].endswith(_normalize(ast.unparse(part.value))):
                return True
        before = _normalize(str(part.value)) if isinstance(part, ast.Constant) else ""
    return False


def _normalize(text: str) -> str:
    """The text without spaces, quotes and parentheses, which ast.unparse may write differently."""
    return "".join(c for c in text if c not in " \t\n\"'()")
