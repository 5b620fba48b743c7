"""Is a function mapped over a dimension? Under autocast, `torch.vmap(attend)` gives another dtype after the edit.

vmap takes torch's attention apart, and what comes of it is not what autocast casts. Products of matrices it does cast.
Follows calls by the names of functions, from the one that is edited outwards. Knows syntax.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.steps import spend
from autofuse.rule import Fails
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.call_index import FORWARD, call_index, decorated
from autofuse.source.capture.scope import Defined, FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing

_MAPS = frozenset({"vmap", "chunk_vmap"})
_MOST = 400  # names that lead to the function


def is_not_mapped(claim: Claim) -> Iterator[Missing | Fails]:
    """Nothing in the file maps an attention, or it does so outside of autocast."""
    if claim.site.rule.replacement.operation != "attention":
        return
    mapped = claim.defined.scope.index(_Mapped)
    found = mapped.call_of(claim.defined) if mapped.calls else None
    if found is not None:
        text = ast.unparse(found).splitlines()[0]
        yield Missing(f"assumes that `{text}` in line {found.lineno} does not run under autocast")


class _Mapped:
    """The places of a file that map a function, and the names that each mentions."""

    def __init__(self, tree: ast.Module) -> None:
        self.calls: list[tuple[ast.expr, set[str]]] = []
        for n in walk(tree):
            if isinstance(n, ast.Call) and _last(n.func) in _MAPS:
                self.calls.append((n, _names_in([*n.args[:1], *(k.value for k in n.keywords if k.arg == "func")])))
            elif isinstance(n, Function):
                self.calls += [(d, {n.name}) for d in n.decorator_list if _names_in([d]) & _MAPS]
        self._tree = tree

    def call_of(self, d: Defined) -> ast.expr | None:
        """The first place that maps the function, or one that calls it."""
        names = _leading_to(d, d.scope)
        return next((n for n, mentioned in self.calls if mentioned & names), None)


def _leading_to(d: Defined, scope: FileScope) -> set[str]:
    """The names of the function, of what holds it, and of the functions that call it, by way of others too."""
    index = scope.index(call_index)
    module = d.owner is not None and d.function.name in FORWARD
    first = d.owner.node.name if module and d.owner is not None else d.function.name
    todo, found = [first, decorated(d.function)], set[str]()
    while todo and len(found) < _MOST:
        for name in index.names_of([todo.pop()]):
            spend()
            if name in found:
                continue
            found.add(name)
            for called in index.calls_by(name):
                around = called.scopes[-1]
                outer = getattr(around, "name", "")
                todo += [index.within.get(around, outer) if outer in FORWARD else outer] if outer else []
    return found


def _names_in(nodes: list[ast.expr]) -> set[str]:
    return {_last(n) for node in nodes for n in walk(node) if _last(n)}


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
