"""Decides which submodules of the project's own classes can be inlined.

A submodule is inlined if its `forward` can be inlined and its attributes are only tensors, numbers and layers without
parameters. Examples are a hand-written GELU, norm or masked softmax. The call of a larger submodule stays a call.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import MODULES
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.project_files import find_project_class
from autofuse.source.capture.scope import ClassScope, FileScope

_MODULE = ("torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module")
# With one of these methods, a call of the module may run other code than its `forward`.
_OVERRIDES_CALL = ("__call__", "__getattr__", "__getattribute__", "_call_impl")
_PLAIN_BUILTINS = ("int", "float", "bool", "str", "len", "tuple", "list", "max", "min", "abs", "round")
_DEEPEST = 3  # levels of submodules that contain submodules


@dataclass(frozen=True, eq=False)
class Child:
    """A class with instances that can be inlined.

    Attributes:
        owner: The class.
        scope: The scope of its file.
        forward: Its method `forward`.
    """

    owner: ClassScope
    scope: FileScope
    forward: Function


def inlinable_child(scope: FileScope, constructor: ast.expr | None, depth: int = 0) -> Child | None:
    """Return the class that a constructor such as `GELU()` calls, if its instances can be inlined; else None."""
    if not isinstance(constructor, ast.Call) or depth > _DEEPEST:
        return None
    spend()
    project_class = find_project_class(scope, constructor.func)
    if project_class is None:
        return None
    owner, file = project_class
    forward = file.method(owner, "forward")
    if forward is None or not file.can_inline(forward) or not _is_module(file, owner):
        return None
    classes = list(file.lineage(owner))
    if any(c.opaque or not c.methods.keys().isdisjoint(_OVERRIDES_CALL) for c in classes):
        return None
    assigned = [(file, e) for c in classes for values in c.attributes.values() for e in values]
    return Child(owner, file, forward) if all(_has_no_parameters(s, e, depth) for s, e in assigned) else None


def _is_module(scope: FileScope, owner: ClassScope) -> bool:
    """Whether a class inherits from nn.Module, and all classes in between are in its file."""
    bases = owner.node.bases
    local_bases = [scope.classes[b.id] for b in bases if isinstance(b, ast.Name) and b.id in scope.classes]
    other_bases = [scope.name_of(b) for b in bases if not (isinstance(b, ast.Name) and b.id in scope.classes)]
    return (
        bool(bases)
        and all(o in _MODULE for o in other_bases)
        and all(_is_module(scope, c) for c in local_bases if c is not owner)
    )


def _has_no_parameters(scope: FileScope, assigned: ast.expr | None, depth: int) -> bool:
    """Whether the value of an attribute is not a module, or is a module without parameters."""
    if not isinstance(assigned, ast.Call):
        return not isinstance(assigned, ast.Lambda)
    name = scope.name_of(assigned.func) or ""
    if name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper():
        kind = MODULES.get(name)
        return name.endswith((".Parameter", ".Buffer")) or kind is not None and "weight" not in kind.read
    if find_project_class(scope, assigned.func) is not None:
        return inlinable_child(scope, assigned, depth + 1) is not None
    plain = (
        isinstance(assigned.func, ast.Name)
        and assigned.func.id in _PLAIN_BUILTINS
        and assigned.func.id not in scope.bound
    )
    return name.startswith(("torch.", "math.", "numpy.")) or plain
