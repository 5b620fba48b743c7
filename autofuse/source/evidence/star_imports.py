"""Do names mean what the file imports them as? A later `from x import *` may bind them to something else."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing


def no_star_hides_a_name(claim: Claim) -> Iterator[Missing | Fails]:
    """What is assumed of a star import that comes after the imports of names that the function reads."""
    scope = claim.defined.scope
    doubts = {n: d.star for n, d in scope.doubtful.items() if d.star and n in scope.qualified}
    if not doubts:
        return
    read = {n.id for n in walk(claim.captured.function) if isinstance(n, ast.Name)}
    for name in sorted(read & doubts.keys()):
        yield Missing(f"assumes that `from {doubts[name]} import *` does not bind `{name}`")
