"""What `self.attend(x)` does, read from what `__init__` assigned to `self.attend`.

Knows constructors by name (vocabulary.py). Knows nothing of graphs.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from autofuse.ir.rows import ModuleClass
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import MODULES
from autofuse.source.capture.children import Child, child_of
from autofuse.source.capture.chosen_activations import is_activation
from autofuse.source.capture.scope import ClassScope, FileScope


@dataclass(frozen=True)
class AppliedLayer:
    """One operation a module applies; `path` leads from the module to the layer inside a Sequential.

    `optional`: the module may be an Identity instead (`nn.Dropout(p) if p else nn.Identity()`). `may_be_none`: it may
    be None instead, so the call has to stand where that was asked.
    """

    op: str
    path: tuple[int, ...]
    fixed: tuple[tuple[str, object], ...]
    read: tuple[str, ...]
    optional: bool = False
    may_be_none: bool = False


@dataclass(frozen=True)
class OwnLayer:
    """A layer of the project's own, at `path` in a Sequential."""

    path: tuple[int, ...]
    child: Child


Layers = list[AppliedLayer | OwnLayer]


def layers_of(scope: FileScope, owner: ClassScope | None, me: str | None, function: ast.expr) -> Layers | None:
    """The layers that calling `function` applies in turn; None where that is not known.

    `function` is `self.name`, `self.name[0]` of a Sequential, or a constructor called there and then.
    """
    constructor = constructor_of(scope, owner, me, function)
    return None if constructor is None else _layers(scope, owner, constructor, ())


def child_called(scope: FileScope, owner: ClassScope | None, me: str | None, function: ast.expr) -> Child | None:
    """The class of the project's own that `function` is an instance of, if it may be read where it is called."""
    return child_of(scope, constructor_of(scope, owner, me, function))


def constructor_of(scope: FileScope, owner: ClassScope | None, me: str | None, function: ast.expr) -> ast.expr | None:
    """What made the module that `function` is."""
    match function:
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == me:
            return scope.attribute(owner, attribute) or _one_of_two(scope, owner, attribute)
        case ast.Subscript(ast.Attribute(ast.Name(id=name), attribute), ast.Constant(int(i))):
            assigned = scope.attribute(owner, attribute) if name == me else None
            return _part(scope, assigned, i)
        case ast.Call() | ast.IfExp():
            return function
    return None


def _one_of_two(scope: FileScope, owner: ClassScope | None, name: str) -> ast.expr | None:
    """`a if ... else b` for an attribute that one class assigns in two places, `a` in one and `b` in the other."""
    found = scope.assigned_to(owner, name)
    return ast.IfExp(ast.Constant(True), found[0], found[1]) if len(found) == 2 else None


def _part(scope: FileScope, constructor: ast.expr | None, index: int) -> ast.expr | None:
    """The constructor of layer `index` of a Sequential or a literal ModuleList."""
    if not isinstance(constructor, ast.Call):
        return None
    name, arguments = _class_name(scope, constructor.func), constructor.args
    if name == "torch.nn.ModuleList" and len(arguments) == 1 and isinstance(arguments[0], ast.List):
        arguments = arguments[0].elts
    elif name != "torch.nn.Sequential":
        return None
    plain = not any(isinstance(a, ast.Starred) for a in arguments)
    return arguments[index] if plain and -len(arguments) <= index < len(arguments) else None


def _layers(scope: FileScope, owner: ClassScope | None, constructor: ast.expr, path: tuple[int, ...]) -> Layers | None:
    spend()
    if isinstance(constructor, ast.IfExp) and (found := _either(scope, owner, constructor, path)) is not None:
        return found
    if not isinstance(constructor, ast.Call):
        return [AppliedLayer("activation", path, (), ())] if is_activation(scope, owner, constructor) else None
    name = _class_name(scope, constructor.func)
    if name == "torch.nn.Sequential" and constructor.args and not constructor.keywords:
        parts = [_layers(scope, owner, a, (*path, i)) for i, a in enumerate(constructor.args)]
        return None if None in parts else [layer for part in parts if part for layer in part]
    if (module := MODULES.get(name)) is not None:
        return _layer(module, constructor, path)
    if is_activation(scope, owner, constructor):
        return [AppliedLayer("activation", path, (), ())]
    child = child_of(scope, constructor) if path else None
    return None if child is None else [OwnLayer(path, child)]


def _layer(module: ModuleClass, constructor: ast.Call, path: tuple[int, ...]) -> Layers | None:
    gathered = any(isinstance(a, ast.Starred) for a in constructor.args) or any(not k.arg for k in constructor.keywords)
    if gathered and module.fixed:  # `**kwargs` may say anything, such as a device, but nothing that is not read again
        return None
    given = {k.arg: k.value for k in constructor.keywords if k.arg}
    given |= dict(zip([name for name, _ in module.fixed], constructor.args, strict=False))  # positional
    fixed = []
    for key, default in module.fixed:
        try:
            fixed.append((key, ast.literal_eval(given[key]) if key in given else default))
        except ValueError:
            return None
    return [AppliedLayer(module.op, path, tuple(fixed), module.read)]


def _either(scope: FileScope, owner: ClassScope | None, constructor: ast.IfExp, path: tuple[int, ...]) -> Layers | None:
    """`nn.Dropout(p) if p else nn.Identity()`, or None: a dropout whose probability may be missing."""
    written = (constructor.body, constructor.orelse)
    nothing = [isinstance(side, ast.Constant) and side.value is None for side in written]
    if sum(nothing) == 1:
        held = _layers(scope, owner, written[nothing.index(False)], path)
        only = held[0] if held and len(held) == 1 else None
        plain = isinstance(only, AppliedLayer) and only.op == "dropout" and not only.optional and not path
        return [replace(only, may_be_none=True)] if plain and isinstance(only, AppliedLayer) else None
    sides = [_layers(scope, owner, side, path) for side in written]
    single = [s[0] for s in sides if s and len(s) == 1 and isinstance(s[0], AppliedLayer)]
    dropouts = [layer for layer in single if layer.op == "dropout"]
    identities = [layer for layer in single if layer.op == "identity"]
    return [replace(dropouts[0], optional=True)] if len(dropouts) == len(identities) == 1 else None


def _class_name(scope: FileScope, function: ast.expr) -> str:
    name = scope.name_of(function) or ""
    if name.startswith("torch.nn.modules."):
        return "torch.nn." + name.rpartition(".")[2]
    return name
