"""Finds out which arguments of a function are tensors.

The evidence is the annotations and the kind of function: a module's forward is called with tensors.
"""

from __future__ import annotations

import ast

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.project_files import files_of_import, find_project_class, read_scope
from autofuse.source.capture.reliable_imports import imports_torch
from autofuse.source.capture.scope import ClassScope, DefinedFunction, FileScope, self_name
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.annotations import Origin, read_annotation
from autofuse.source.evidence.libraries import ARRAY_LIBRARIES, TORCH_LIKE_LIBRARIES, package_of

_AUTOGRAD_FUNCTIONS = ("torch.autograd.Function", "torch.autograd.function.Function")
_TENSOR_METHODS = frozenset({"__matmul__", "__mul__", "__add__", "__truediv__", "softmax", "transpose", "__getattr__"})
_AUTOGRAD_METHODS = ("forward", "backward", "setup_context", "jvp", "vmap")


def argument_origins(d: DefinedFunction) -> dict[str, Origin]:
    """Returns, by the argument's name, the origin of each argument for which the text shows one."""
    gets_tensors, function = is_called_with_tensors(d), d.function
    origins = {}
    for a, default in _arguments_with_defaults(function):
        origin = read_annotation(d.scope, a.annotation)
        if origin is None and a.annotation is None and isinstance(default, ast.Constant) and default.value is not None:
            origin = Origin.PLAIN
        if origin is None and a.annotation is None and gets_tensors:
            origin = Origin.TENSOR
        if origin is not None:
            origins[a.arg] = origin
    return origins


def is_called_with_tensors(d: DefinedFunction) -> bool:
    """Whether modules, autograd or TorchScript call the function, so that its arguments are tensors."""
    function, owner = d.function, d.owner
    if any((d.scope.name_of(x) or "").startswith("torch.jit.script") for x in function.decorator_list):
        return True  # TorchScript takes an argument without an annotation as a tensor
    if owner is None or d.instance_name is not None:
        return False
    if function.name in _AUTOGRAD_METHODS and inherits(d.scope, owner, _AUTOGRAD_FUNCTIONS):
        return True
    if not is_module(d.scope, owner):
        return False
    bound = self_name(function) is not None
    return bound and function.name == "forward" or _is_called_by_other_methods(d.scope, owner, function)


def is_module(scope: FileScope, owner: ClassScope) -> bool:
    """Whether a class is a module: it inherits from a class of torch.nn, or has a forward and layers of torch.nn."""
    lineage = list(scope.lineage(owner))
    if any(_is_module_base(scope, b) for c in lineage for b in c.node.bases):
        return True
    values = [v for c in lineage for assigned in c.attributes.values() for v in assigned if isinstance(v, ast.Call)]
    layers = any((scope.name_of(v.func) or "").startswith("torch.nn.") for v in values)
    return bool(owner.node.bases) and layers and any("forward" in c.methods for c in lineage)


def _is_module_base(scope: FileScope, base: ast.expr) -> bool:
    if isinstance(base, ast.Subscript):
        base = base.value
    name = scope.name_of(base) or ""
    if name.startswith("torch.nn."):
        return True
    last = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
    if last in scope.classes or package_of(name) in ARRAY_LIBRARIES:
        return False
    if (base_class := find_project_class(scope, base)) is not None:
        return is_module(base_class[1], base_class[0])
    if has_torch_like_arrays(scope) or _comes_without_torch(scope, base):
        return False
    return last.endswith(("Module", "PreTrainedModel", "Layer", "Model")) and bool(name or last in scope.imports)


def _comes_without_torch(scope: FileScope, base: ast.expr) -> bool:
    """Whether a name is imported from files of the project that do not import torch: `from tensors import nn`."""
    root = base
    while isinstance(root, ast.Attribute):
        root = root.value
    statement = scope.imports.get(root.id) if isinstance(root, ast.Name) else None
    if statement is None or scope.file is None:
        return False
    files = [other for f in files_of_import(statement, scope.file) if (other := read_scope(f)) is not None]
    return bool(files) and not any(_imports_more(other) for other in files)


def _imports_more(scope: FileScope) -> bool:
    """Whether a file imports torch, or another file that may do so."""
    nodes = node_index(scope.tree).of_kinds(ast.Import, ast.ImportFrom)
    return any(isinstance(n, ast.ImportFrom) and n.level for n in nodes) or imports_torch(scope.tree)


def inherits(scope: FileScope, owner: ClassScope, names: tuple[str, ...]) -> bool:
    """Whether `owner` or a base class in its file inherits from one of `names`, which are qualified names."""
    return any(scope.name_of(b) in names for c in scope.lineage(owner) for b in c.node.bases)


def _is_called_by_other_methods(scope: FileScope, owner: ClassScope, function: Function) -> bool:
    """Whether other methods of the module call this one, and none of them uses arrays of another library."""
    callers = [
        m for c in scope.lineage(owner) for m in c.methods.values()
        if m is not None and m is not function and _calls(m, function.name, owner.node.name)
    ]  # fmt: skip
    return bool(callers) and not any(_refers_to_arrays(scope, n) for m in callers for n in walk(m))


def _calls(method: Function, name: str, owner: str) -> bool:
    me = self_name(method) or owner
    return any(
        isinstance(n, ast.Attribute) and n.attr == name and _is_name_of(n.value, me, owner) for n in walk(method)
    )


def _refers_to_arrays(scope: FileScope, node: ast.AST) -> bool:
    """Whether an expression refers to arrays of another library."""
    if isinstance(node, ast.Attribute) and node.attr in ("numpy", "ndarray"):
        return True
    return isinstance(node, ast.Name) and package_of(scope.qualified_names.get(node.id)) in ARRAY_LIBRARIES


def _is_name_of(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _arguments_with_defaults(function: Function) -> list[tuple[ast.arg, ast.expr | None]]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = len(positional) - len(arguments.defaults)
    defaults: list[ast.expr | None] = [*([None] * missing), *arguments.defaults]
    variadic = [(a, None) for a in (arguments.vararg, arguments.kwarg) if a is not None]
    keyword_only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [*zip(positional, defaults, strict=True), *keyword_only, *variadic]


def has_torch_like_arrays(scope: FileScope) -> bool:
    """Whether the file uses arrays that have torch's method names.

    A method call is then no evidence of a torch tensor.
    """
    if any(package_of(meaning) in TORCH_LIKE_LIBRARIES for meaning in scope.qualified_names.values()):
        return True
    names = scope.bound | scope.imports.keys()
    if "Tensor" in names and not (scope.qualified_names.get("Tensor") or "").startswith("torch."):
        return True
    return any(_TENSOR_METHODS & c.methods.keys() for c in scope.classes.values())
