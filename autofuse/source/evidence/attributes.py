"""Finds out what an attribute `self.x` holds: a tensor, an array of another library, a child module.

The evidence is the assignments in the class.
"""

from __future__ import annotations

import ast

from autofuse.source.capture.scope import ClassScope, FileScope
from autofuse.source.evidence.annotations import Origin, read_annotation
from autofuse.source.evidence.libraries import ARRAY_LIBRARIES, PLAIN_METHODS, package_of, returns_tensor

_CHILD_TENSORS = ("weight", "bias", "running_mean", "running_var", "in_proj_weight", "in_proj_bias")


def attribute_origin(scope: FileScope, owner: ClassScope | None, name: str) -> Origin | None:
    """Returns the origin of the instance attribute `name`; None if the class does not show it."""
    lineage = list(scope.lineage(owner))
    if any(name in c.buffers for c in lineage):
        return Origin.TENSOR
    assigned = [v for c in lineage for v in (*c.attributes.get(name, ()), *c.defaults.get(name, ()))]
    origins = {_read_origin(scope, v) for v in assigned if v is not None} - {Origin.PLAIN}
    if len(origins) == 1 and (origin := origins.pop()) is not None:
        return origin
    declared = [s.annotation for c in lineage for s in c.node.body if isinstance(s, ast.AnnAssign) and _binds(s, name)]
    return read_annotation(scope, declared[0]) if declared else None


def is_tensor_of_child(name: str) -> bool:
    """Whether `name` is a tensor attribute of torch's layers, and so of a child: `self.child.weight`."""
    return name in _CHILD_TENSORS


def is_child(scope: FileScope, owner: ClassScope | None, name: str) -> bool:
    """Whether `self.name` is assigned an instance of some class, so that calling it computes tensors."""
    values = [v for c in scope.lineage(owner) for v in c.attributes.get(name, ()) if isinstance(v, ast.Call)]
    return any(_last_name(v.func)[:1].isupper() and not returns_tensor(scope.name_of(v.func) or "") for v in values)


def is_torch_child(scope: FileScope, owner: ClassScope | None, name: str) -> bool:
    """Whether every value that is assigned to `self.name` is a module of torch.nn."""
    values = [v for c in scope.lineage(owner) for v in c.attributes.get(name, ())]
    torch_modules = [
        v for v in values if isinstance(v, ast.Call) and (scope.name_of(v.func) or "").startswith("torch.nn.")
    ]
    return bool(torch_modules) and len(torch_modules) == len(values)


def expression_origin(scope: FileScope, node: ast.expr) -> Origin | None:
    """Returns the origin of an expression at module level."""
    return _read_origin(scope, node)


def _read_origin(scope: FileScope, node: ast.expr, depth: int = 0) -> Origin | None:
    if depth > 12:
        return None
    match node:
        case ast.Constant():
            return Origin.PLAIN
        case ast.Call(func=function):
            name = scope.name_of(function) or ""
            if returns_tensor(name):
                return Origin.TENSOR
            if package_of(name) in ARRAY_LIBRARIES:
                return Origin.ARRAY
            if isinstance(function, ast.Attribute) and function.attr not in PLAIN_METHODS:
                return Origin.ARRAY if function.attr == "numpy" else _read_origin(scope, function.value, depth + 1)
        case ast.BinOp(left=left, right=right):
            sides = {_read_origin(scope, left, depth + 1), _read_origin(scope, right, depth + 1)}
            return next((o for o in (Origin.TENSOR, Origin.ARRAY) if o in sides), None)
        case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner):
            return _read_origin(scope, inner, depth + 1)
        case ast.IfExp(body=body, orelse=orelse):
            sides = {_read_origin(scope, body, depth + 1), _read_origin(scope, orelse, depth + 1)} - {Origin.PLAIN}
            return sides.pop() if len(sides) == 1 else None
    return None


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _binds(statement: ast.AnnAssign, name: str) -> bool:
    return isinstance(statement.target, ast.Name) and statement.target.id == name
