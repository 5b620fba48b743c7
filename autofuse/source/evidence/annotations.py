"""Reads the annotation of an argument: a torch tensor, an array of another library, or a plain Python value."""

from __future__ import annotations

import ast
from enum import Enum

from autofuse.source.capture.scope import FileScope
from autofuse.source.evidence.libraries import ARRAY_LIBRARIES, package_of


class Origin(Enum):
    """The type of a value, as far as the evidence shows it."""

    TENSOR = "a torch tensor"
    ARRAY = "another library's array"
    PLAIN = "a number, None, or the like"


_PLAIN_TYPES = frozenset("int float bool str None complex".split())
_GENERIC_TYPES = frozenset(
    "Optional Union List Tuple Sequence Iterable list tuple Final ClassVar Iterator Dict dict".split()
)
_SHAPED_TYPES = ("jaxtyping.", "torchtyping.", "nptyping.")


def read_annotation(scope: FileScope, node: ast.expr | None, depth: int = 0) -> Origin | None:
    """Returns the origin that an annotation `x: node` declares.

    Returns None if the annotation is missing, unknown or ambiguous. `depth` bounds the recursion into nested types.
    """
    if node is None or depth > 8:
        return None
    match node:
        case ast.Constant(value=None):
            return Origin.PLAIN
        case ast.Constant(value=str(text)):
            return read_annotation(scope, _parse(text), depth + 1)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _read_union(scope, [left, right], depth)
        case ast.Subscript(value=generic, slice=inner):
            return _read_generic(scope, generic, inner, depth)
        case ast.Name() | ast.Attribute():
            return _read_name(scope, node, depth)
    return None


def _parse(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _read_name(scope: FileScope, node: ast.Name | ast.Attribute, depth: int) -> Origin | None:
    if isinstance(node, ast.Name):
        if node.id in _PLAIN_TYPES and node.id not in scope.bound:
            return Origin.PLAIN
        if node.id in scope.classes:
            is_other_tensor = node.id == "Tensor" and not _has_torch_base(scope, scope.classes[node.id].node)
            return Origin.ARRAY if is_other_tensor else None
        if node.id in scope.variables and scope.name_of(node) is None:  # a type alias: Tensors = Optional[torch.Tensor]
            return read_annotation(scope, scope.variables[node.id], depth + 1)
    name = scope.name_of(node)
    if name is None:
        return None
    last = name.rpartition(".")[2]
    if name.startswith("torch."):
        return Origin.TENSOR if last.endswith("Tensor") or last in ("Parameter", "Buffer") else None
    if package_of(name) in ("jaxtyping", "torchtyping"):
        return Origin.TENSOR if last == "TensorType" else None
    if package_of(name) in ARRAY_LIBRARIES or last == "Tensor":  # a Tensor class that is not torch's: tinygrad.Tensor
        return Origin.ARRAY
    return None


def _has_torch_base(scope: FileScope, node: ast.ClassDef) -> bool:
    return any((scope.name_of(b) or "").startswith("torch.") for b in node.bases)


def _read_generic(scope: FileScope, generic: ast.expr, inner: ast.expr, depth: int) -> Origin | None:
    name = scope.name_of(generic) or ast.unparse(generic)
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    last = name.rpartition(".")[2]
    if last == "TensorType":
        return Origin.TENSOR
    if name.startswith(_SHAPED_TYPES) or last == "Annotated":  # Float[Tensor, "batch dim"]
        return read_annotation(scope, parts[0], depth + 1) if parts else None
    if last in ("Dict", "dict", "Mapping"):
        return read_annotation(scope, parts[-1], depth + 1)
    if last in _GENERIC_TYPES:
        return _read_union(scope, [p for p in parts if not isinstance(p, ast.Constant) or p.value is not ...], depth)
    return read_annotation(scope, generic, depth + 1)  # np.ndarray[Any, ...], NDArray[np.float32]


def _read_union(scope: FileScope, parts: list[ast.expr], depth: int) -> Origin | None:
    """Returns the common origin of the members of a union.

    Plain members do not count next to others: `Optional[Tensor]` and `Tensor | float` are tensors.
    """
    origins = {read_annotation(scope, p, depth + 1) for p in parts}
    if origins == {Origin.PLAIN}:
        return Origin.PLAIN
    not_plain = origins - {Origin.PLAIN}
    return not_plain.pop() if len(not_plain) == 1 else None
