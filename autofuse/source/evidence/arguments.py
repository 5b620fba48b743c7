"""What a function's arguments are, by annotations and by what calls it: a module's forward is given tensors.

Knows classes and syntax. Knows nothing of graphs.
"""

from __future__ import annotations

import ast

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.project_files import own_class
from autofuse.source.capture.scope import ClassScope, Defined, FileScope, self_name
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.annotations import Origin, annotated
from autofuse.source.evidence.libraries import ARRAYS, LIKE_TORCH, root

_FUNCTIONS = ("torch.autograd.Function", "torch.autograd.function.Function")
_OPERATORS = frozenset({"__matmul__", "__mul__", "__add__", "__truediv__", "softmax", "transpose", "__getattr__"})
_OF_FUNCTION = ("forward", "backward", "setup_context", "jvp", "vmap")


def argument_origins(d: Defined) -> dict[str, Origin]:
    """Argument name -> what it is, for those of which the text tells."""
    given, function = called_with_tensors(d), d.function
    found = {}
    for a, default in _with_defaults(function):
        said = annotated(d.scope, a.annotation)
        if said is None and a.annotation is None and isinstance(default, ast.Constant) and default.value is not None:
            said = Origin.PLAIN
        if said is None and a.annotation is None and given:
            said = Origin.TENSOR
        if said is not None:
            found[a.arg] = said
    return found


def called_with_tensors(d: Defined) -> bool:
    """Whether a function is one that is given tensors: by a module that is called, by autograd, by a script."""
    function, owner = d.function, d.owner
    if any((d.scope.name_of(x) or "").startswith("torch.jit.script") for x in function.decorator_list):
        return True  # there, an argument without an annotation is a tensor
    if owner is None or d.me is not None:
        return False
    if function.name in _OF_FUNCTION and inherits(d.scope, owner, _FUNCTIONS):
        return True
    if not is_module(d.scope, owner):
        return False
    bound = self_name(function) is not None
    return bound and function.name == "forward" or _called_inside(d.scope, owner, function)


def is_module(scope: FileScope, owner: ClassScope) -> bool:
    """Whether a class is a module: it inherits from torch's, or it has a forward and keeps layers of torch's."""
    lineage = list(scope.lineage(owner))
    if any(_names_module(scope, b) for c in lineage for b in c.node.bases):
        return True
    values = [v for c in lineage for vs in c.attributes.values() for v in vs if isinstance(v, ast.Call)]
    layers = any((scope.name_of(v.func) or "").startswith("torch.nn.") for v in values)
    return bool(owner.node.bases) and layers and any("forward" in c.methods for c in lineage)


def _names_module(scope: FileScope, base: ast.expr) -> bool:
    if isinstance(base, ast.Subscript):
        base = base.value
    name = scope.name_of(base) or ""
    if name.startswith("torch.nn."):
        return True
    last = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
    if last in scope.classes or root(name) in ARRAYS:
        return False
    if (found := own_class(scope, base)) is not None:
        return is_module(found[1], found[0])
    return last.endswith(("Module", "PreTrainedModel", "Layer", "Model")) and bool(name or last in scope.imports)


def inherits(scope: FileScope, owner: ClassScope, names: tuple[str, ...]) -> bool:
    return any(scope.name_of(b) in names for c in scope.lineage(owner) for b in c.node.bases)


def _called_inside(scope: FileScope, owner: ClassScope, function: Function) -> bool:
    """Whether other methods of a module call this one on it, and none of them has anything to do with arrays."""
    callers = [
        m for c in scope.lineage(owner) for m in c.methods.values()
        if m is not None and m is not function and _calls(m, function.name, owner.node.name)
    ]  # fmt: skip
    return bool(callers) and not any(_foreign(scope, n) for m in callers for n in walk(m))


def _calls(method: Function, name: str, owner: str) -> bool:
    me = self_name(method) or owner
    return any(isinstance(n, ast.Attribute) and n.attr == name and _is_one_of(n.value, me, owner) for n in walk(method))


def _foreign(scope: FileScope, node: ast.AST) -> bool:
    """Whether an expression is about arrays of another library."""
    if isinstance(node, ast.Attribute) and node.attr in ("numpy", "ndarray"):
        return True
    return isinstance(node, ast.Name) and root(scope.qualified.get(node.id)) in ARRAYS


def _is_one_of(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _with_defaults(function: Function) -> list[tuple[ast.arg, ast.expr | None]]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = len(positional) - len(arguments.defaults)
    defaults: list[ast.expr | None] = [*([None] * missing), *arguments.defaults]
    gathered = [(a, None) for a in (arguments.vararg, arguments.kwarg) if a is not None]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [*zip(positional, defaults, strict=True), *named, *gathered]


def has_lookalikes(scope: FileScope) -> bool:
    """Whether the file knows of arrays with torch's own methods, so that a method does not tell torch's tensors."""
    if any(root(meaning) in LIKE_TORCH for meaning in scope.qualified.values()):
        return True
    foreign = scope.bound | scope.imports.keys()
    if "Tensor" in foreign and not (scope.qualified.get("Tensor") or "").startswith("torch."):
        return True
    return any(_OPERATORS & c.methods.keys() for c in scope.classes.values())
