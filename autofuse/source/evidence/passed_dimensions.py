"""Does a call in the file pass a query or a value that has lost a dimension, and keys that have not?

`[attend(x, keys, values) for x in xs]` passes the entries of `xs`: vectors, if `xs` is a matrix. If the keys lose a
dimension in the same way (`for q, k, v in zip(qs, ks, vs)`), the operands fit together. This file counts the dimensions
that the expressions of a call remove: an index, an iteration, `squeeze`, `vmap`. It looks at syntax.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.steps import spend
from autofuse.rule import Fails
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.call_arguments import BoundCall, CallArguments
from autofuse.source.evidence.call_operands import only_argument_of
from autofuse.source.evidence.claim import Claim, Missing

_MAX_DEPTH = 6
_MAPS = frozenset({"vmap", "chunk_vmap"})
_PARTS_OF_SAME_RANK = frozenset("split chunk tensor_split split_with_sizes array_split".split())
_COUNTERS = frozenset({"range", "trange"})
_SHAPES = frozenset("view reshape expand repeat rearrange unflatten permute stack".split())
_REDUCTIONS = frozenset("mean sum amax amin norm prod logsumexp".split())
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def calls_keep_dimensions(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports a call of the function that removes more dimensions from the query or the value than from the keys."""
    if claim.site.rule.replacement.operation != "attention":
        return
    captures, d = claim.site.captures, claim.defined
    names = {n: only_argument_of(claim, captures[n]) for n in ("query", "key", "value")}
    if not any(names.values()) or names["query"] == names["key"] == names["value"]:
        return
    for call in d.scope.index(CallArguments).calls_of(d):
        of_keys = _removed_by_call(call, names["key"]) if names["key"] else 0
        for operand in ("query", "value"):
            name = names[operand]
            if name and name != names["key"] and _removed_by_call(call, name) > max(of_keys, 0):
                where = f"`{call.text}` in line {call.call.lineno}"
                yield Missing(f"assumes that `{name}` has two dimensions or more, also in {where}")
                return


def _removed_by_call(call: BoundCall, argument: str | None) -> int:
    """Returns how many dimensions a call removes from what it passes to an argument."""
    expressions = call.arguments.get(argument or "", [])
    return max((_removed(e, call.scopes, _MAX_DEPTH) for e in expressions), default=0) + _mapped(call, expressions)


def _mapped(call: BoundCall, expressions: list[ast.expr]) -> int:
    """Returns 1 if the call is `vmap(attend, in_dims=(0, None, None))(q, k, v)` and maps over the argument."""
    outer = call.call.func
    if not isinstance(outer, ast.Call) or _last_name(outer.func) not in _MAPS or not expressions:
        return 0
    dims: ast.expr | None = outer.args[1] if len(outer.args) > 1 else None
    dims = next((k.value for k in outer.keywords if k.arg == "in_dims"), dims)
    at = next((i for i, a in enumerate(call.call.args) if a is expressions[0]), 0)
    if isinstance(dims, (ast.Tuple, ast.List)):
        dims = dims.elts[at] if at < len(dims.elts) else None
    return int(not (isinstance(dims, ast.Constant) and dims.value is None))


def _removed(node: ast.expr, scopes: tuple[ast.AST, ...], depth: int) -> int:
    """Returns how many dimensions the operations of an expression remove; negative if they add some."""
    spend()
    if depth == 0:
        return 0
    match node:
        case ast.Name(id=name):
            return _removed_by_name(name, scopes, depth - 1)
        case ast.Subscript(value=value, slice=index):
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            return _removed(value, scopes, depth - 1) + sum(_removed_by_index(p, scopes) for p in parts)
        case ast.Call(func=ast.Attribute(attr=name)) if name in _SHAPES:
            return -_MAX_DEPTH  # the sizes say what it is; tensor_expressions.py reads them
        case ast.Call(func=function, args=args):
            return _removed_by_function(node, scopes, depth) + (
                _removed(tensor, scopes, depth - 1) if (tensor := _first_operand(function, args)) is not None else 0
            )
        case ast.BinOp(left=left, right=right):
            sides = [s for s in (left, right) if not isinstance(s, ast.Constant)]
            return min((_removed(s, scopes, depth - 1) for s in sides), default=0)
    return 0


def _first_operand(function: ast.expr, args: list[ast.expr]) -> ast.expr | None:
    """Returns the tensor that a call works on: `x` of `x.float()`, `F.normalize(x)` and `self.norm(x)`."""
    if isinstance(function, ast.Attribute) and function.attr in {*_REDUCTIONS, "squeeze", "select", "unsqueeze"}:
        return args[0] if _last_name(function.value) == "torch" and args else function.value
    return args[0] if args else function.value if isinstance(function, ast.Attribute) else None


def _removed_by_function(call: ast.Call, scopes: tuple[ast.AST, ...], depth: int) -> int:
    name = _last_name(call.func)
    if name in _REDUCTIONS:
        return 0 if any(k.arg in ("keepdim", "keepdims") for k in call.keywords) else 1
    return {"squeeze": 1, "select": 1, "unsqueeze": -1}.get(name, 0)


def _removed_by_index(part: ast.expr, scopes: tuple[ast.AST, ...]) -> int:
    match part:
        case ast.Constant(value=None):
            return -1
        case ast.Constant(value=int()) | ast.UnaryOp(operand=ast.Constant(value=int())):
            return 1
        case ast.Name(id=name):
            return int(any(_is_counter(name, scope) for scope in scopes))
    return 0


def _is_counter(name: str, scope: ast.AST) -> bool:
    """Whether a loop of a scope binds the name to numbers: `for i in range(n)`, `for i, x in enumerate(xs)`."""
    for target, iterable in _loops(scope):
        kind = _last_name(iterable.func) if isinstance(iterable, ast.Call) else ""
        first = target.elts[0] if kind == "enumerate" and isinstance(target, ast.Tuple) and target.elts else target
        if (kind in _COUNTERS or kind == "enumerate") and isinstance(first, ast.Name) and first.id == name:
            return True
    return False


def _removed_by_name(name: str, scopes: tuple[ast.AST, ...], depth: int) -> int:
    """Returns how many dimensions are removed from what a name holds: 1 for the entry of an iteration."""
    for scope in reversed(scopes):
        for target, iterable in _loops(scope):
            if (source := _iterated(target, iterable, name)) is not None:
                return _removed_by_iteration(source, scope, scopes, depth)
        if (value := _only_assigned(name, scope)) is not None:
            return _removed(value, scopes, depth)
        if isinstance(scope, Function) and any(a.arg == name for a in walk(scope.args) if isinstance(a, ast.arg)):
            return 0
    return int(any(_is_mapped_lambda(name, s) for s in scopes[-1:]))


def _removed_by_iteration(source: ast.expr, scope: ast.AST, scopes: tuple[ast.AST, ...], depth: int) -> int:
    """Returns how many dimensions an entry of an iteration lacks: 1 for the rows of a matrix."""
    value = _only_assigned(source.id, scope) if isinstance(source, ast.Name) else None
    made = value if value is not None else source
    if isinstance(made, ast.Call) and _last_name(made.func) in _PARTS_OF_SAME_RANK:
        return 0
    if isinstance(made, (ast.List, ast.Tuple, *_COMPREHENSIONS)):
        return 0  # a list of tensors
    inner = made.func.value if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) else made
    is_unbound = isinstance(made, ast.Call) and _last_name(made.func) == "unbind"
    return 1 + _removed(inner if is_unbound else source, scopes, depth)


def _iterated(target: ast.expr, iterable: ast.expr, name: str) -> ast.expr | None:
    """Returns what a loop takes the values of a name from, if it binds the name."""
    kind = _last_name(iterable.func) if isinstance(iterable, ast.Call) else ""
    args = iterable.args if isinstance(iterable, ast.Call) else []
    if isinstance(target, ast.Name):
        return iterable if target.id == name and kind not in _COUNTERS else None
    if not isinstance(target, (ast.Tuple, ast.List)):
        return None
    if kind == "enumerate" and len(target.elts) == 2 and args:
        return _iterated(target.elts[1], args[0], name)
    if kind == "zip" and len(args) == len(target.elts):
        found = (_iterated(t, a, name) for t, a in zip(target.elts, args, strict=True))
        return next((f for f in found if f is not None), None)
    return None


def _loops(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields the targets and the iterables of the loops and comprehensions of a scope."""
    for n in walk(scope):
        if isinstance(n, (ast.For, ast.AsyncFor, ast.comprehension)):
            yield n.target, n.iter


def _only_assigned(name: str, scope: ast.AST) -> ast.expr | None:
    """Returns the value of the only assignment to a name in a scope; None if there is another number of them."""
    if not isinstance(scope, Function):
        return None
    values = [
        n.value for n in walk(scope) if isinstance(n, ast.Assign) for t in n.targets
        if isinstance(t, ast.Name) and t.id == name
    ]  # fmt: skip
    return values[0] if len(values) == 1 else None


def _is_mapped_lambda(name: str, scope: ast.AST) -> bool:
    """Whether `map` calls a lambda of the scope that has an argument of this name."""
    maps = (n for n in walk(scope) if isinstance(n, ast.Call) and _last_name(n.func) in ("map", "starmap") and n.args)
    lambdas = (m.args[0] for m in maps if isinstance(m.args[0], ast.Lambda))
    return any(a.arg == name for f in lambdas for a in f.args.args)


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
