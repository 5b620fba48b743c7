"""Recognizes loss modules of torch, such as `criterion` in `criterion(output, target)`.

The module may be created in `__init__`, at module level, or in the same function. Its constructor is therefore read
from the text or from the graph.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from autofuse.ir.graph import CALL, GLOBAL, Value
from autofuse.ir.rows import ModuleClass
from autofuse.ir.vocabulary import MODULES
from autofuse.source.capture.scope import FileScope

_MOVES = ("to", "cuda", "cpu")


@dataclass(frozen=True)
class LossModule:
    """A loss module.

    Attributes:
        op: The operation.
        fixed: Arguments of the constructor that are literals.
        arguments: Arguments of the constructor that are values of the graph.
        read: Arguments that must be read from attributes of the module.
    """

    op: str
    fixed: Mapping[str, object]
    arguments: Mapping[str, Value]
    read: tuple[str, ...]


def find_loss_module(scope: FileScope, function: Value, constructor: ast.expr | None) -> LossModule | None:
    """Return the loss module that a call uses, or None.

    Args:
        scope: The scope of the file.
        function: The called value.
        constructor: The expression that constructs the module, if it is an attribute of the instance.
    """
    module = _before_move(function)
    if module.op == CALL and isinstance(module.data, tuple):
        return _read_values(module)
    if module.op == GLOBAL:
        constructor = scope.variables.get(str(module.data))
    return None if constructor is None else _read_constructor(scope, constructor)


def _before_move(v: Value) -> Value:
    """Return the module before calls of `.to(device)` or `.cuda()`, which return the module itself."""
    while v.op == "to" or v.op == CALL and isinstance(v.data, tuple) and v.data[0] in [f".{m}" for m in _MOVES]:
        v = v.inputs[0] if v.op == "to" else v.inputs[0].inputs[0]
    return v


def _read_values(module: Value) -> LossModule | None:
    assert isinstance(module.data, tuple)
    name, keywords = module.data
    loss = _loss_class(str(name))
    if loss is None:
        return None
    values = module.inputs[1:]
    positional = values[: len(values) - len(keywords)]
    arguments = dict(zip([n for n, _ in loss.fixed], positional, strict=False))
    arguments |= dict(zip(keywords, values[len(positional) :], strict=True))
    return LossModule(loss.op, {n: d for n, d in loss.fixed if n not in arguments}, arguments, ())


def _read_constructor(scope: FileScope, constructor: ast.expr) -> LossModule | None:
    while isinstance(constructor, ast.Call) and isinstance(constructor.func, ast.Attribute):
        if constructor.func.attr not in _MOVES:
            break
        constructor = constructor.func.value
    if not isinstance(constructor, ast.Call) or any(isinstance(a, ast.Starred) for a in constructor.args):
        return None
    loss = _loss_class(scope.name_of(constructor.func) or "")
    if loss is None or any(k.arg is None for k in constructor.keywords):
        return None
    arguments = dict(zip([n for n, _ in loss.fixed], constructor.args, strict=False))
    arguments |= {k.arg: k.value for k in constructor.keywords if k.arg}
    literals, read = dict[str, object](), list[str]()
    for name, default in loss.fixed:
        try:
            literals[name] = ast.literal_eval(arguments[name]) if name in arguments else default
        except ValueError:
            read.append(name)
    return LossModule(loss.op, literals, {}, tuple(read)) if {*read} <= {*loss.kept} else None


def _loss_class(name: str) -> ModuleClass | None:
    """Return the loss class with the full name `name`, which may also be a name in `torch.nn.modules`."""
    if name.startswith("torch.nn.modules."):
        name = "torch.nn." + name.rpartition(".")[2]
    loss = MODULES.get(name)
    return loss if loss is not None and loss.operands == 2 else None
