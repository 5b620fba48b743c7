"""Finds the layers that a call such as `self.attend(x)` applies, from the constructor assigned in `__init__`.

Constructors are recognized by their names in the vocabulary. This module uses no graphs.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from autofuse.ir.rows import ModuleClass
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import MODULES
from autofuse.source.capture.activation_arguments import is_activation
from autofuse.source.capture.children import Child, inlinable_child
from autofuse.source.capture.scope import ClassScope, FileScope


@dataclass(frozen=True)
class AppliedLayer:
    """One operation that a module applies.

    Attributes:
        op: The operation.
        path: The indexes that lead from the called module to the layer, through Sequentials.
        fixed: Arguments of the constructor that are literals.
        read: Attributes of the layer that are arguments of the operation.
        optional: Whether the layer may be an Identity instead: `nn.Dropout(p) if p else nn.Identity()`.
        may_be_none: Whether the attribute may be None instead. Then the code tests for None before the call.
    """

    op: str
    path: tuple[int, ...]
    fixed: tuple[tuple[str, object], ...]
    read: tuple[str, ...]
    optional: bool = False
    may_be_none: bool = False


@dataclass(frozen=True)
class ProjectLayer:
    """A layer with a class of the project. `path` leads to it through Sequentials."""

    path: tuple[int, ...]
    child: Child


Layers = list[AppliedLayer | ProjectLayer]


def applied_layers(
    scope: FileScope, owner: ClassScope | None, instance: str | None, function: ast.expr
) -> Layers | None:
    """Return the layers that a call of `function` applies in turn, or None if they are not known.

    Args:
        scope: The scope of the file.
        owner: The class of the calling method.
        instance: The name of the instance, usually "self".
        function: The called expression: `self.name`, `self.name[0]` of a Sequential, or a constructor.
    """
    constructor = find_constructor(scope, owner, instance, function)
    return None if constructor is None else _layers(scope, owner, constructor, ())


def called_child(scope: FileScope, owner: ClassScope | None, instance: str | None, function: ast.expr) -> Child | None:
    """Return the project's class that `function` is an instance of, if the instance can be inlined; else None."""
    return inlinable_child(scope, find_constructor(scope, owner, instance, function))


def find_constructor(
    scope: FileScope, owner: ClassScope | None, instance: str | None, function: ast.expr
) -> ast.expr | None:
    """Return the expression that constructs the called module `function`, or None."""
    match function:
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == instance:
            return scope.attribute(owner, attribute) or _two_assignments(scope, owner, attribute)
        case ast.Subscript(ast.Attribute(ast.Name(id=name), attribute), ast.Constant(int(i))):
            assigned = scope.attribute(owner, attribute) if name == instance else None
            return _layer_constructor(scope, assigned, i)
        case ast.Call() | ast.IfExp():
            return function
    return None


def _two_assignments(scope: FileScope, owner: ClassScope | None, name: str) -> ast.expr | None:
    """Return `a if ... else b` for an attribute that a class assigns twice, with the values `a` and `b`."""
    assigned = scope.assigned_to(owner, name)
    return ast.IfExp(ast.Constant(True), assigned[0], assigned[1]) if len(assigned) == 2 else None


def _layer_constructor(scope: FileScope, constructor: ast.expr | None, index: int) -> ast.expr | None:
    """Return the constructor of layer `index` of a Sequential or of a ModuleList with a literal list."""
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
    """Return the layers of the module that `constructor` creates, or None. `path` leads to this module."""
    spend()
    if (
        isinstance(constructor, ast.IfExp)
        and (layers := _conditional_layer(scope, owner, constructor, path)) is not None
    ):
        return layers
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
    child = inlinable_child(scope, constructor) if path else None
    return None if child is None else [ProjectLayer(path, child)]


def _layer(module: ModuleClass, constructor: ast.Call, path: tuple[int, ...]) -> Layers | None:
    """Return the layer of a module class of the vocabulary; None if its arguments are not known."""
    has_starred = any(isinstance(a, ast.Starred) for a in constructor.args) or any(
        not k.arg for k in constructor.keywords
    )
    # Arguments in `**kwargs` matter only if the operation needs literals of the constructor.
    if has_starred and module.fixed:
        return None
    arguments = {k.arg: k.value for k in constructor.keywords if k.arg}
    arguments |= dict(zip([name for name, _ in module.fixed], constructor.args, strict=False))  # positional
    fixed = []
    for key, default in module.fixed:
        try:
            fixed.append((key, ast.literal_eval(arguments[key]) if key in arguments else default))
        except ValueError:
            return None
    absent = _absent_parameters(module, constructor)
    return [AppliedLayer(module.op, path, tuple(fixed), tuple(n for n in module.read if n not in absent))]


def _absent_parameters(module: ModuleClass, constructor: ast.Call) -> set[str]:
    """The parameters that the constructor leaves out: the bias of `nn.Linear(8, 8, bias=False)`."""
    given = {k.arg: k.value for k in constructor.keywords}
    positional = [] if any(isinstance(a, ast.Starred) for a in constructor.args) else constructor.args
    absent = set[str]()
    for name, position, parameters in module.switches:
        value = positional[position] if position < len(positional) else given.get(name)
        if isinstance(value, ast.Constant) and value.value is False:
            absent.update(parameters)
    return absent


def _conditional_layer(
    scope: FileScope, owner: ClassScope | None, constructor: ast.IfExp, path: tuple[int, ...]
) -> Layers | None:
    """Return the dropout of `nn.Dropout(p) if p else nn.Identity()`, or of the same with None as the alternative."""
    constructors = (constructor.body, constructor.orelse)
    is_none = [isinstance(side, ast.Constant) and side.value is None for side in constructors]
    if sum(is_none) == 1:
        layers = _layers(scope, owner, constructors[is_none.index(False)], path)
        layer = layers[0] if layers and len(layers) == 1 else None
        plain = isinstance(layer, AppliedLayer) and layer.op == "dropout" and not layer.optional and not path
        return [replace(layer, may_be_none=True)] if plain and isinstance(layer, AppliedLayer) else None
    sides = [_layers(scope, owner, side, path) for side in constructors]
    single = [s[0] for s in sides if s and len(s) == 1 and isinstance(s[0], AppliedLayer)]
    dropouts = [layer for layer in single if layer.op == "dropout"]
    identities = [layer for layer in single if layer.op == "identity"]
    return [replace(dropouts[0], optional=True)] if len(dropouts) == len(identities) == 1 else None


def _class_name(scope: FileScope, function: ast.expr) -> str:
    name = scope.name_of(function) or ""
    if name.startswith("torch.nn.modules."):
        return "torch.nn." + name.rpartition(".")[2]
    return name
