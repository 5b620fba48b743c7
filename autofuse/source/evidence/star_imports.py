"""Does each name refer to what the file imports? A later `from x import *` may bind the name to something else."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing


def check_star_imports(claim: Claim) -> Iterator[Missing | Fails]:
    """Yield an assumption for each star import that comes after the import of a name that the function reads."""
    scope = claim.defined.scope
    star_imports = {
        n: doubt.star for n, doubt in scope.doubtful_imports.items() if doubt.star and n in scope.qualified_names
    }
    if not star_imports:
        return
    names_read = {n.id for n in walk(claim.captured.function) if isinstance(n, ast.Name)}
    for name in sorted(names_read & star_imports.keys()):
        yield Missing(f"assumes that `from {star_imports[name]} import *` does not bind `{name}`")
