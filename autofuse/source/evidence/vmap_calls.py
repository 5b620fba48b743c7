"""Is a function mapped with `torch.vmap`? Under autocast, the edited function then returns another dtype.

vmap decomposes torch's attention into operators that autocast does not cast. The matrix products of the original code
are cast. This file follows calls by function name, from the edited function to its callers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.steps import spend
from autofuse.rule import Fails
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.call_index import FORWARD, call_index, decorated_name
from autofuse.source.capture.scope import DefinedFunction, FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing

_MAPPING_FUNCTIONS = frozenset({"vmap", "chunk_vmap"})
_MAX_NAMES = 400  # of functions that call the edited one


def check_vmap(claim: Claim) -> Iterator[Missing | Fails]:
    """Yield an assumption if the file maps the edited attention with vmap: the call must not run under autocast."""
    if claim.site.rule.replacement.operation != "attention":
        return
    mapped = claim.defined.scope.index(_MappedFunctions)
    call = mapped.find_call(claim.defined) if mapped.calls else None
    if call is not None:
        text = ast.unparse(call).splitlines()[0]
        yield Missing(f"assumes that `{text}` in line {call.lineno} does not run under autocast")


class _MappedFunctions:
    """The places of a file that map a function, and the names that each place mentions."""

    def __init__(self, tree: ast.Module) -> None:
        self.calls: list[tuple[ast.expr, set[str]]] = []
        for n in walk(tree):
            if isinstance(n, ast.Call) and _last_name(n.func) in _MAPPING_FUNCTIONS:
                self.calls.append((n, _names_in([*n.args[:1], *(k.value for k in n.keywords if k.arg == "func")])))
            elif isinstance(n, Function):
                self.calls += [
                    (decorator, {n.name})
                    for decorator in n.decorator_list
                    if _names_in([decorator]) & _MAPPING_FUNCTIONS
                ]
        self._tree = tree

    def find_call(self, defined: DefinedFunction) -> ast.expr | None:
        """The first place that maps the function or one of its callers."""
        names = _caller_names(defined, defined.scope)
        return next((n for n, mentioned in self.calls if mentioned & names), None)


def _caller_names(defined: DefinedFunction, scope: FileScope) -> set[str]:
    """The names of the function, of the variables that hold it, and of its direct and indirect callers."""
    index = scope.index(call_index)
    owner, function = defined.owner, defined.function
    is_forward = owner is not None and function.name in FORWARD
    first = owner.node.name if is_forward and owner is not None else function.name
    todo, names = [first, decorated_name(function)], set[str]()
    while todo and len(names) < _MAX_NAMES:
        for name in index.aliases_of([todo.pop()]):
            spend()
            if name in names:
                continue
            names.add(name)
            for called in index.calls_of(name):
                around = called.scopes[-1]
                outer = getattr(around, "name", "")
                # Code calls the instance, not `forward`: the name of the class leads further.
                todo += [index.method_classes.get(around, outer) if outer in FORWARD else outer] if outer else []
    return names


def _names_in(nodes: list[ast.expr]) -> set[str]:
    return {_last_name(n) for node in nodes for n in walk(node) if _last_name(n)}


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
