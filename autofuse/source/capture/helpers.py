"""Decides which functions can be inlined: short functions without loops, side effects or early returns."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable

from autofuse.ir.graph import Value
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.constants import evaluate_number
from autofuse.source.capture.syntax import children, walk

_LONGEST = 20  # statements
_ALLOWED_STATEMENTS = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.Assert, ast.Pass, ast.Return, ast.Import, ast.ImportFrom,
)  # fmt: skip
_TRANSPARENT = ("staticmethod",)
_COMPILED = ("jit.script", "jit.script_if_tracing", "torch.compile")
# Operations that change no numbers. autocast does not affect them.
_ONLY_MOVE_DATA = frozenset(
    "rearrange repeat unbind chunk split stack cat flatten unflatten view reshape reshape_as view_as".split()
)
_FORBIDDEN = (ast.Yield, ast.YieldFrom, ast.Await, ast.Lambda, ast.NamedExpr, ast.Global, ast.Nonlocal)


def is_inlinable(helper: Function) -> bool:
    """Whether a helper has no loops and ends in its only `return`."""
    transparent = all(_is_transparent(d, helper) for d in helper.decorator_list)
    body = [s for s in statements_until_return(helper.body) if not _is_docstring(s)]
    if not transparent or isinstance(helper, ast.AsyncFunctionDef) or not body or not isinstance(body[-1], ast.Return):
        return False
    if len(body) > _LONGEST or body[-1].value is None or helper.args.vararg or helper.args.kwarg:
        return False
    if not all(isinstance(s, _ALLOWED_STATEMENTS) for s in body):  # a fast test that rejects most functions
        return False
    nodes = [n for s in body for n in walk(s)]
    statements = [n for n in nodes if isinstance(n, ast.stmt)]
    returns = sum(isinstance(n, ast.Return) for n in statements)
    allowed = all(isinstance(s, _ALLOWED_STATEMENTS) and not _stores(s) for s in statements)
    return (
        returns == 1 and allowed and len(statements) <= _LONGEST and not any(isinstance(n, _FORBIDDEN) for n in nodes)
    )


def statements_until_return(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of `body` up to its first `return`."""
    last = next((i for i, s in enumerate(body) if isinstance(s, ast.Return)), len(body))
    return body[: last + 1]


def _is_transparent(decorator: ast.expr, helper: Function) -> bool:
    """Whether a decorator keeps the meaning of the helper.

    This holds for a decorator that compiles the helper. It also holds for one that disables autocast, if the helper
    only moves data.
    """
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = ast.unparse(called)
    if name in _TRANSPARENT or name.endswith(_COMPILED):
        return True
    off = isinstance(decorator, ast.Call) and any(
        k.arg == "enabled" and isinstance(k.value, ast.Constant) and k.value.value is False for k in decorator.keywords
    )
    calls = [n.func for n in walk(helper) if isinstance(n, ast.Call) and n is not decorator]
    return off and name.endswith("autocast") and all(_last_name(c) in _ONLY_MOVE_DATA for c in calls)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _stores(statement: ast.stmt) -> bool:
    """Whether a statement assigns to an attribute or an item."""
    return any(
        isinstance(n, (ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Store)
        for part in children(statement)
        if isinstance(part, ast.expr)
        for n in walk(part)
    )


def bind_arguments(
    helper: Function, arguments: list[Value], named: dict[str, Value], const: Callable[[Hashable], Value]
) -> dict[str, Value] | None:
    """Return the value of each parameter of `helper` in a call.

    Args:
        helper: The called function.
        arguments: The positional arguments.
        named: The keyword arguments.
        const: Creates a value for a default.

    Returns:
        The values by parameter. None if the arguments do not fit, or if a default is not a literal.
    """
    positional = [a.arg for a in (*helper.args.posonlyargs, *helper.args.args)]
    keyword = [a.arg for a in helper.args.kwonlyargs]
    if len(arguments) > len(positional) or not named.keys() <= {*positional[len(arguments) :], *keyword}:
        return None
    bound = {**dict(zip(positional, arguments, strict=False)), **named}
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
    """Return the value of a literal or of arithmetic on literals (`32 ** 2`); an ellipsis for anything else."""
    if (number := evaluate_number(node, {}, {})) is not None:
        return number
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ...
