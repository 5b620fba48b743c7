"""Child modules whose class is the project's own, and which of them may be read as if written where they are called.

A class is read when its forward is straight-line code and it holds nothing but tensors, numbers and layers without
parameters: a GELU, a norm or a masked softmax that somebody wrote out. What is larger stays a call. Knows syntax only.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import MODULES
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.project_files import own_class
from autofuse.source.capture.scope import ClassScope, FileScope

_MODULE = ("torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module")
_WATCHED = ("__call__", "__getattr__", "__getattribute__", "_call_impl")
_PLAIN = ("int", "float", "bool", "str", "len", "tuple", "list", "max", "min", "abs", "round")
_DEEPEST = 3


@dataclass(frozen=True, eq=False)
class Child:
    """A class that may be read where an instance is called: its forward, and the file that it stands in."""

    owner: ClassScope
    scope: FileScope
    forward: Function


def child_of(scope: FileScope, constructor: ast.expr | None, depth: int = 0) -> Child | None:
    """The class of `GELU()`, if its forward may be read as if written where the instance is called."""
    if not isinstance(constructor, ast.Call) or depth > _DEEPEST:
        return None
    spend()
    found = own_class(scope, constructor.func)
    if found is None:
        return None
    owner, home = found
    forward = home.method(owner, "forward")
    if forward is None or not home.helper(forward) or not _is_module(home, owner):
        return None
    classes = list(home.lineage(owner))
    if any(c.opaque or not c.methods.keys().isdisjoint(_WATCHED) for c in classes):
        return None
    assigned = [(home, e) for c in classes for values in c.attributes.values() for e in values]
    return Child(owner, home, forward) if all(_is_light(s, e, depth) for s, e in assigned) else None


def _is_module(scope: FileScope, owner: ClassScope) -> bool:
    """Whether a class inherits from nn.Module, by way of classes of its own file alone."""
    bases = owner.node.bases
    own = [scope.classes[b.id] for b in bases if isinstance(b, ast.Name) and b.id in scope.classes]
    others = [scope.name_of(b) for b in bases if not (isinstance(b, ast.Name) and b.id in scope.classes)]
    return (
        bool(bases) and all(o in _MODULE for o in others) and all(_is_module(scope, c) for c in own if c is not owner)
    )


def _is_light(scope: FileScope, assigned: ast.expr | None, depth: int) -> bool:
    """Whether what is assigned to an attribute is no module, or one without parameters."""
    if not isinstance(assigned, ast.Call):
        return not isinstance(assigned, ast.Lambda)
    name = scope.name_of(assigned.func) or ""
    if name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper():
        kind = MODULES.get(name)
        return name.endswith((".Parameter", ".Buffer")) or kind is not None and "weight" not in kind.read
    if own_class(scope, assigned.func) is not None:
        return child_of(scope, assigned, depth + 1) is not None
    plain = isinstance(assigned.func, ast.Name) and assigned.func.id in _PLAIN and assigned.func.id not in scope.bound
    return name.startswith(("torch.", "math.", "numpy.")) or plain
