"""What a message says of the helpers and children that an edit reads through.

"reads `self.drop` as the nn.Dropout that __init__ makes": nobody outside of the given files can be seen to put another
module there, so the message says what is taken for granted. Decides nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from autofuse.ir.graph import TUPLE, Value
from autofuse.source.capture.scope import Defined, self_name
from autofuse.source.evidence.claim import Claim


def read_as(claim: Claim) -> str:
    """A clause for the helpers and children that `claim` reads through; "" where it reads none."""
    d = claim.defined
    told = dict[str, str]()
    results = {r.value for r in claim.site.results}
    values = {*claim.site.doomed.values, *results, *_tuples_of(claim, results)}
    for v in sorted(values, key=lambda v: v.serial):
        for place in claim.captured.places.get(v, ()):
            if isinstance(place.node, ast.Call):
                name, kind = _told(place.node.func, d)
                if kind:
                    told.setdefault(name, kind)
    return "reads " + " and ".join(f"`{name}` as {kind}" for name, kind in told.items()) if told else ""


def _tuples_of(claim: Claim, results: Collection[Value]) -> Iterator[Value]:
    """What a helper returns a result in: `out` of `out = self.attend(x); y = out[0]`."""
    return (u for v in results for u in claim.captured.graph.users[v] if u.op == TUPLE)


def _told(function: ast.expr, d: Defined) -> tuple[str, str]:
    """What is called, and what it is taken for."""
    while isinstance(function, ast.Subscript):
        function = function.value
    match function:
        case ast.Name(id=name) if name in d.scope.functions and name not in d.scope.local:
            return name, "the function of this file"
        case ast.Attribute(value=ast.Name(id=me), attr=name) if me == (d.me or self_name(d.function)) and d.owner:
            if d.scope.method(d.owner, name) is not None:
                return f"self.{name}", f"the method of {d.owner.node.name}"
            made = d.scope.attribute(d.owner, name)
            if isinstance(made, ast.Call):
                return f"self.{name}", f"the {ast.unparse(made.func)} that __init__ makes"
            return f"self.{name}", "what __init__ makes" if made is not None else ""
    return "", ""
