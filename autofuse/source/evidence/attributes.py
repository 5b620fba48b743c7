"""What `self.x` is: a parameter, a buffer, a tensor that a method assigned, a child module, something else.

Reads what the class assigns. Knows nothing of graphs.
"""

from __future__ import annotations

import ast

from autofuse.source.capture.scope import ClassScope, FileScope
from autofuse.source.evidence.annotations import Origin, annotated
from autofuse.source.evidence.libraries import ARRAYS, PLAIN_METHODS, gives_tensor, root

_OF_CHILDREN = ("weight", "bias", "running_mean", "running_var", "in_proj_weight", "in_proj_bias")


def attribute_origin(scope: FileScope, owner: ClassScope | None, name: str) -> Origin | None:
    """What the attribute `name` of the instance holds; None where the class does not tell."""
    lineage = list(scope.lineage(owner))
    if any(name in c.buffers for c in lineage):
        return Origin.TENSOR
    assigned = [v for c in lineage for v in (*c.attributes.get(name, ()), *c.defaults.get(name, ()))]
    found = {_origin(scope, v) for v in assigned if v is not None} - {Origin.PLAIN}
    if len(found) == 1 and (origin := found.pop()) is not None:
        return origin
    declared = [s.annotation for c in lineage for s in c.node.body if isinstance(s, ast.AnnAssign) and _binds(s, name)]
    return annotated(scope, declared[0]) if declared else None


def of_child(name: str) -> bool:
    """Whether a child of torch's, or one like it, keeps a tensor under `name`."""
    return name in _OF_CHILDREN


def is_child(scope: FileScope, owner: ClassScope | None, name: str) -> bool:
    """Whether `self.name` is assigned what a constructor gives, which calling then computes tensors."""
    values = [v for c in scope.lineage(owner) for v in c.attributes.get(name, ()) if isinstance(v, ast.Call)]
    return any(_last_name(v.func)[:1].isupper() and not gives_tensor(scope.name_of(v.func) or "") for v in values)


def child_of_torch(scope: FileScope, owner: ClassScope | None, name: str) -> bool:
    """Whether every child that is assigned to `self.name` is a module of torch's own."""
    values = [v for c in scope.lineage(owner) for v in c.attributes.get(name, ())]
    made = [v for v in values if isinstance(v, ast.Call) and (scope.name_of(v.func) or "").startswith("torch.nn.")]
    return bool(made) and len(made) == len(values)


def expression_origin(scope: FileScope, node: ast.expr) -> Origin | None:
    """What an expression of a file, outside of functions, gives."""
    return _origin(scope, node)


def _origin(scope: FileScope, node: ast.expr, depth: int = 0) -> Origin | None:
    if depth > 12:
        return None
    match node:
        case ast.Constant():
            return Origin.PLAIN
        case ast.Call(func=function):
            name = scope.name_of(function) or ""
            if gives_tensor(name):
                return Origin.TENSOR
            if root(name) in ARRAYS:
                return Origin.ARRAY
            if isinstance(function, ast.Attribute) and function.attr not in PLAIN_METHODS:
                return Origin.ARRAY if function.attr == "numpy" else _origin(scope, function.value, depth + 1)
        case ast.BinOp(left=left, right=right):
            sides = {_origin(scope, left, depth + 1), _origin(scope, right, depth + 1)}
            return next((o for o in (Origin.TENSOR, Origin.ARRAY) if o in sides), None)
        case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner):
            return _origin(scope, inner, depth + 1)
        case ast.IfExp(body=body, orelse=orelse):
            sides = {_origin(scope, body, depth + 1), _origin(scope, orelse, depth + 1)} - {Origin.PLAIN}
            return sides.pop() if len(sides) == 1 else None
    return None


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _binds(statement: ast.AnnAssign, name: str) -> bool:
    return isinstance(statement.target, ast.Name) and statement.target.id == name
