"""Does the program print its own text? `f"{s.shape=}"` shows the expression, so it may not become another one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.reasons import tensors
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.place.edits import is_inside, span_of


def shows_no_text(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails where an expression that changes stands in an f-string that prints it."""
    shown = [span_of(n) for n in walk(claim.captured.function) if isinstance(n, ast.JoinedStr) and _shows(n)]
    for span, _ in claim.edit.replacements if shown else ():
        if any(is_inside(span, outer) for outer in shown):
            yield Fails(because(tensors.TEXT_SHOWN))


def _shows(node: ast.JoinedStr) -> bool:
    """Whether some part is `{expression=}`: the parser keeps its text in the constant before it."""
    before = ""
    for part in node.values:
        if isinstance(part, ast.FormattedValue) and before.endswith("="):
            if before[:-1].endswith(_squeezed(ast.unparse(part.value))):
                return True
        before = _squeezed(str(part.value)) if isinstance(part, ast.Constant) else ""
    return False


def _squeezed(text: str) -> str:
    """Text without what may be written in two ways."""
    return "".join(c for c in text if c not in " \t\n\"'()")
