"""Which functions of a file may be read as if written where they are called: short, straight-line, without effects.

Knows syntax only.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable

from autofuse.ir.graph import Value
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.constants import number_of
from autofuse.source.capture.syntax import children, walk

_LONGEST = 20  # statements
_STRAIGHT = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.Assert, ast.Pass, ast.Return, ast.Import, ast.ImportFrom,
)  # fmt: skip
_SAME = ("staticmethod",)
_COMPILED = ("jit.script", "jit.script_if_tracing", "torch.compile")
_MOVES = frozenset(
    "rearrange repeat unbind chunk split stack cat flatten unflatten view reshape reshape_as view_as".split()
)
_NEVER = (ast.Yield, ast.YieldFrom, ast.Await, ast.Lambda, ast.NamedExpr, ast.Global, ast.Nonlocal)


def inlinable(helper: Function) -> bool:
    """Whether a helper is straight-line code that ends in its only `return`."""
    static = all(_changes_nothing(d, helper) for d in helper.decorator_list)
    body = [s for s in reached(helper.body) if not _is_docstring(s)]
    if not static or isinstance(helper, ast.AsyncFunctionDef) or not body or not isinstance(body[-1], ast.Return):
        return False
    if len(body) > _LONGEST or body[-1].value is None or helper.args.vararg or helper.args.kwarg:
        return False
    if not all(isinstance(s, _STRAIGHT) for s in body):  # most are found out here
        return False
    inside = [n for s in body for n in walk(s)]
    statements = [n for n in inside if isinstance(n, ast.stmt)]
    returns = sum(isinstance(n, ast.Return) for n in statements)
    straight = all(isinstance(s, _STRAIGHT) and not _stores(s) for s in statements)
    return returns == 1 and straight and len(statements) <= _LONGEST and not any(isinstance(n, _NEVER) for n in inside)


def reached(body: list[ast.stmt]) -> list[ast.stmt]:
    """`body` up to its first `return`."""
    last = next((i for i, s in enumerate(body) if isinstance(s, ast.Return)), len(body))
    return body[: last + 1]


def _changes_nothing(decorator: ast.expr, helper: Function) -> bool:
    """Whether a decorated function computes what it says: it is compiled, or moves numbers with autocast shut off."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = ast.unparse(called)
    if name in _SAME or name.endswith(_COMPILED):
        return True
    off = isinstance(decorator, ast.Call) and any(
        k.arg == "enabled" and isinstance(k.value, ast.Constant) and k.value.value is False for k in decorator.keywords
    )
    calls = [n.func for n in walk(helper) if isinstance(n, ast.Call) and n is not decorator]
    return off and name.endswith("autocast") and all(_last_name(c) in _MOVES for c in calls)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _stores(statement: ast.stmt) -> bool:
    """Whether a statement assigns to more than names."""
    return any(
        isinstance(n, (ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Store)
        for part in children(statement)
        if isinstance(part, ast.expr)
        for n in walk(part)
    )


def arguments_of(
    helper: Function, given: list[Value], named: dict[str, Value], const: Callable[[Hashable], Value]
) -> dict[str, Value] | None:
    """What each parameter of `helper` holds in a call; None where the call does not fit, or a default is no literal."""
    positional = [a.arg for a in (*helper.args.posonlyargs, *helper.args.args)]
    keyword = [a.arg for a in helper.args.kwonlyargs]
    if len(given) > len(positional) or not named.keys() <= {*positional[len(given) :], *keyword}:
        return None
    bound = {**dict(zip(positional, given, strict=False)), **named}
    defaults = dict(zip(positional[::-1], helper.args.defaults[::-1], strict=False))
    defaults |= {a: d for a, d in zip(keyword, helper.args.kw_defaults, strict=True) if d is not None}
    for name in (*positional, *keyword):
        if name in bound:
            continue
        default = defaults.get(name)
        value = _literal(default) if default is not None else ...
        if not isinstance(value, (int, float, str, type(None))):
            return None
        bound[name] = const(value)
    return bound


def _literal(node: ast.expr) -> object:
    """The value of a literal, or of arithmetic on literals (`32 ** 2`); an ellipsis for anything else."""
    if (number := number_of(node, {}, {})) is not None:
        return number
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ...
