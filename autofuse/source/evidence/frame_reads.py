"""Does anything read the names of a running function? `frame.f_locals["p"]` misses those that an edit removes.

Frames are reached by helpers, tracers and tracebacks, so a read anywhere in the file, or in a file that it imports or
that imports it, may be of any function. Knows names of the standard library and syntax.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing

_FUNCTIONS = frozenset({"getargvalues", "getinnerframes", "getouterframes"})
_KEYWORDS = frozenset({"capture_locals", "show_locals"})
_LONGEST = 60  # characters of the code that a message repeats


def frames_are_not_read(claim: Claim) -> Iterator[Missing | Fails]:
    """Nothing that the given files show reads the names that functions hold while they run."""
    own, files = claim.defined.scope, claim.files
    for scope in (own, *(files.reading_frames(own) if files is not None else ())):
        found = scope.index(_reads)
        if found is not None:
            text = ast.unparse(found).splitlines()[0]
            told = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
            where = "" if scope.tree is own.tree or scope.file is None else f"{scope.file.name}, "
            yield Missing(f"assumes that `{told}` in {where}line {found.lineno} reads the names of no frame of this")
            return


def _reads(tree: ast.Module) -> ast.expr | None:
    """The first place of a file that reads what the names of a frame hold."""
    found = (n for n in walk(tree) if isinstance(n, ast.expr) and _is_read(n))
    return min(found, key=lambda n: n.lineno, default=None)


def _is_read(n: ast.expr) -> bool:
    match n:
        case ast.Attribute(attr="f_locals"):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), keywords=keywords):
            shown = any(k.arg in _KEYWORDS and not _is_false(k.value) for k in keywords)
            return name in _FUNCTIONS or shown or name == "getattr" and _names_locals(n.args)
    return False


def _names_locals(arguments: list[ast.expr]) -> bool:
    return any(isinstance(a, ast.Constant) and a.value == "f_locals" for a in arguments)


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value
