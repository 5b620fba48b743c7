"""The clause of a message that names the helpers and children that an edit relies on.

An example is "reads `self.drop` as the nn.Dropout that __init__ makes". Code outside the given files may assign another
module. The given files do not show that, so the message states the assumption. This file decides nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from autofuse.ir.graph import TUPLE, Value
from autofuse.source.capture.scope import DefinedFunction, self_name
from autofuse.source.evidence.claim import Claim


def describe_callees(claim: Claim) -> str:
    """Return a clause that names the helpers and children that the edit relies on; "" if there are none."""
    defined = claim.defined
    kind_by_name = dict[str, str]()
    results = {r.value for r in claim.site.results}
    values = {*claim.site.removed.values, *results, *_tuples_of(claim, results)}
    for v in sorted(values, key=lambda v: v.serial):
        for place in claim.captured.positions.get(v, ()):
            if isinstance(place.node, ast.Call):
                name, kind = _describe_callee(place.node.func, defined)
                if kind:
                    kind_by_name.setdefault(name, kind)
    return "reads " + " and ".join(f"`{name}` as {kind}" for name, kind in kind_by_name.items()) if kind_by_name else ""


def _tuples_of(claim: Claim, results: Collection[Value]) -> Iterator[Value]:
    """The tuples in which a helper returns a result: `out` of `out = self.attend(x); y = out[0]`."""
    return (u for v in results for u in claim.captured.graph.users[v] if u.op == TUPLE)


def _describe_callee(function: ast.expr, defined: DefinedFunction) -> tuple[str, str]:
    """Return the name of the called function, and what the edit takes it for."""
    while isinstance(function, ast.Subscript):
        function = function.value
    match function:
        case ast.Name(id=name) if name in defined.scope.functions and name not in defined.scope.local:
            return name, "the function of this file"
        case ast.Attribute(value=ast.Name(id=receiver), attr=name) if (
            receiver == (defined.instance_name or self_name(defined.function)) and defined.owner
        ):
            if defined.scope.method(defined.owner, name) is not None:
                return f"self.{name}", f"the method of {defined.owner.node.name}"
            value = defined.scope.attribute(defined.owner, name)
            if isinstance(value, ast.Call):
                return f"self.{name}", f"the {ast.unparse(value.func)} that __init__ makes"
            return f"self.{name}", "what __init__ makes" if value is not None else ""
    return "", ""
