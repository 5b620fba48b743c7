"""What an annotation says of an argument: a torch tensor, another library's array, or something plain.

Knows syntax and the imports of one file.
"""

from __future__ import annotations

import ast
from enum import Enum

from autofuse.source.capture.scope import FileScope
from autofuse.source.evidence.libraries import ARRAYS, root


class Origin(Enum):
    """What a value is, as far as evidence goes."""

    TENSOR = "a torch tensor"
    ARRAY = "another library's array"
    PLAIN = "a number, None, or the like"


_PLAIN = frozenset("int float bool str None complex".split())
_WRAPPERS = frozenset(
    "Optional Union List Tuple Sequence Iterable list tuple Final ClassVar Iterator Dict dict".split()
)
_ANY_SHAPE = ("jaxtyping.", "torchtyping.", "nptyping.")


def annotated(scope: FileScope, node: ast.expr | None, depth: int = 0) -> Origin | None:
    """What `x: node` says; None where it says nothing that is known, or several things."""
    if node is None or depth > 8:
        return None
    match node:
        case ast.Constant(value=None):
            return Origin.PLAIN
        case ast.Constant(value=str(text)):
            return annotated(scope, _parsed(text), depth + 1)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _one_of(scope, [left, right], depth)
        case ast.Subscript(value=generic, slice=inner):
            return _of_generic(scope, generic, inner, depth)
        case ast.Name() | ast.Attribute():
            return _named(scope, node, depth)
    return None


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _named(scope: FileScope, node: ast.Name | ast.Attribute, depth: int) -> Origin | None:
    if isinstance(node, ast.Name):
        if node.id in _PLAIN and node.id not in scope.bound:
            return Origin.PLAIN
        if node.id in scope.classes:
            return Origin.ARRAY if node.id == "Tensor" and not _of_torch(scope, scope.classes[node.id].node) else None
        if node.id in scope.variables and scope.name_of(node) is None:  # Tensors = Optional[torch.Tensor]
            return annotated(scope, scope.variables[node.id], depth + 1)
    name = scope.name_of(node)
    if name is None:
        return None
    last = name.rpartition(".")[2]
    if name.startswith("torch."):
        return Origin.TENSOR if last.endswith("Tensor") or last in ("Parameter", "Buffer") else None
    if root(name) in ("jaxtyping", "torchtyping"):
        return Origin.TENSOR if last == "TensorType" else None
    if root(name) in ARRAYS or last == "Tensor":  # tinygrad's, or that of a library like it
        return Origin.ARRAY
    return None


def _of_torch(scope: FileScope, node: ast.ClassDef) -> bool:
    return any((scope.name_of(b) or "").startswith("torch.") for b in node.bases)


def _of_generic(scope: FileScope, generic: ast.expr, inner: ast.expr, depth: int) -> Origin | None:
    name = scope.name_of(generic) or ast.unparse(generic)
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    last = name.rpartition(".")[2]
    if last == "TensorType":
        return Origin.TENSOR
    if name.startswith(_ANY_SHAPE) or last == "Annotated":  # Float[Tensor, "batch dim"]
        return annotated(scope, parts[0], depth + 1) if parts else None
    if last in ("Dict", "dict", "Mapping"):
        return annotated(scope, parts[-1], depth + 1)
    if last in _WRAPPERS:
        return _one_of(scope, [p for p in parts if not isinstance(p, ast.Constant) or p.value is not ...], depth)
    return annotated(scope, generic, depth + 1)  # np.ndarray[Any, ...], NDArray[np.float32]


def _one_of(scope: FileScope, parts: list[ast.expr], depth: int) -> Origin | None:
    """What all of several types are; None of them, and a number beside a tensor, are passed over."""
    found = {annotated(scope, p, depth + 1) for p in parts}
    if found == {Origin.PLAIN}:
        return Origin.PLAIN
    rest = found - {Origin.PLAIN}
    return rest.pop() if len(rest) == 1 else None
