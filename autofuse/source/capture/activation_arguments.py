"""Recognizes activations that are arguments of a constructor: `act_layer()`, with the parameter `act_layer=nn.GELU`.

The activation itself is known only when the module runs. That it is an activation follows from the default of the
parameter, or from the table of activations that it is looked up in.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.vocabulary import ACTIVATIONS, OTHER_ACTIVATIONS
from autofuse.source.capture.scope import ClassScope, FileScope
from autofuse.source.capture.syntax import walk

_CLASSES = frozenset(op.module for op in ACTIVATIONS.values()) | {*OTHER_ACTIVATIONS.values()}
_FUNCTIONS = frozenset(name for op in ACTIVATIONS.values() for name in op.last_names) | {*OTHER_ACTIVATIONS}
_TABLES = ("ACT2FN", "ACT2CLS")  # transformers.activations
_DEEPEST = 4


def is_activation(scope: FileScope, owner: ClassScope | None, node: ast.expr | None, depth: int = 0) -> bool:
    """Whether the expression `node`, which `__init__` assigns, is certainly some activation."""
    if depth > _DEEPEST:
        return False
    match node:
        case ast.Call(func=function):
            return _is_class(scope, owner, function, depth) or _imported_as(scope, function) == "get_activation"
        case ast.Subscript(value=ast.Dict(values=values)):
            return bool(values) and all(is_activation(scope, owner, v, depth + 1) for v in values)
        case ast.Subscript(value=table):
            return _imported_as(scope, table) in _TABLES
        case ast.IfExp(body=yes, orelse=no):
            return all(is_activation(scope, owner, side, depth + 1) for side in (yes, no))
        case ast.Name(id=name) if _function_of(scope, node) is None:
            return any(is_activation(scope, owner, v, depth + 1) for v in _values(owner, name))
    return _function_of(scope, node) is not None


def _is_class(scope: FileScope, owner: ClassScope | None, node: ast.expr, depth: int) -> bool:
    """Whether a call of `node` creates an activation, according to its name, its default or its fallback."""
    name = scope.name_of(node) or ""
    if name.startswith("torch.nn."):
        return name.rpartition(".")[2] in _CLASSES
    if depth > _DEEPEST:
        return False
    match node:
        case ast.Name(id=local):
            assigned = [n.value for n in scope.tree.body if isinstance(n, ast.Assign) and _binds(n, local)]
            return any(_is_class(scope, owner, v, depth + 1) for v in (*_values(owner, local), *assigned))
        case ast.IfExp(body=yes, orelse=no):
            return _is_class(scope, owner, yes, depth + 1) or _is_class(scope, owner, no, depth + 1)
        case ast.BoolOp(values=values) | ast.Call(args=values):  # act_layer or nn.GELU, default(activation, nn.GELU)
            return any(
                _is_class(scope, owner, v, depth + 1) for v in values if isinstance(v, (ast.Name, ast.Attribute))
            )
    return False


def _function_of(scope: FileScope, node: ast.expr | None) -> str | None:
    """Return the full name of the activation function of torch that `node` names, or None."""
    name = (scope.name_of(node) or "") if node is not None else ""
    return name if name.startswith("torch.") and name.rpartition(".")[2] in _FUNCTIONS else None


def _values(owner: ClassScope | None, name: str) -> Iterator[ast.expr]:
    """Yield the expressions that the local `name` of `__init__` may hold: its default and its assignments."""
    init = owner.methods.get("__init__") if owner is not None else None
    if init is None:
        return
    arguments = init.args
    positional = [*arguments.posonlyargs, *arguments.args]
    yield from (d for a, d in zip(positional[::-1], arguments.defaults[::-1], strict=False) if a.arg == name)
    yield from (d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d and a.arg == name)
    for n in walk(init):
        if isinstance(n, ast.Assign) and _binds(n, name):
            yield n.value


def _binds(statement: ast.Assign, name: str) -> bool:
    return any(isinstance(t, ast.Name) and t.id == name for t in statement.targets)


def _imported_as(scope: FileScope, node: ast.expr) -> str:
    """Return the original name of an import from a module `activations`, such as `ACT2FN`; "" for other names."""
    if not isinstance(node, ast.Name) or (statement := scope.imports.get(node.id)) is None:
        return ""
    if (statement.module or "").rpartition(".")[2] != "activations":
        return ""
    return next((a.name for a in statement.names if (a.asname or a.name) == node.id), "")
