"""What `criterion(output, target)` computes: a loss of torch's that was made in `__init__`, at module level or nearby.

Knows constructors by name (vocabulary.py), as text or as values of a graph. Makes no value.
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
    """A loss: literals that its constructor was given, values it was given, and attributes to read of the instance."""

    op: str
    fixed: Mapping[str, object]
    given: Mapping[str, Value]
    read: tuple[str, ...]


def criterion_of(scope: FileScope, function: Value, constructor: ast.expr | None) -> LossModule | None:
    """The loss that is called as `function`, which `constructor` made where the text says so."""
    made = _unmoved(function)
    if made.op == CALL and isinstance(made.data, tuple):
        return _from_values(made)
    if made.op == GLOBAL:
        constructor = scope.variables.get(str(made.data))
    return None if constructor is None else _from_text(scope, constructor)


def _unmoved(v: Value) -> Value:
    """A module before `.to(device)` or `.cuda()`, which return it."""
    while v.op == "to" or v.op == CALL and isinstance(v.data, tuple) and v.data[0] in [f".{m}" for m in _MOVES]:
        v = v.inputs[0] if v.op == "to" else v.inputs[0].inputs[0]
    return v


def _from_values(made: Value) -> LossModule | None:
    assert isinstance(made.data, tuple)
    name, keywords = made.data
    kind = _loss_called(str(name))
    if kind is None:
        return None
    values = made.inputs[1:]
    positional = values[: len(values) - len(keywords)]
    given = dict(zip([n for n, _ in kind.fixed], positional, strict=False))
    given |= dict(zip(keywords, values[len(positional) :], strict=True))
    return LossModule(kind.op, {n: d for n, d in kind.fixed if n not in given}, given, ())


def _from_text(scope: FileScope, constructor: ast.expr) -> LossModule | None:
    while isinstance(constructor, ast.Call) and isinstance(constructor.func, ast.Attribute):
        if constructor.func.attr not in _MOVES:
            break
        constructor = constructor.func.value
    if not isinstance(constructor, ast.Call) or any(isinstance(a, ast.Starred) for a in constructor.args):
        return None
    kind = _loss_called(scope.name_of(constructor.func) or "")
    if kind is None or any(k.arg is None for k in constructor.keywords):
        return None
    given = dict(zip([n for n, _ in kind.fixed], constructor.args, strict=False))
    given |= {k.arg: k.value for k in constructor.keywords if k.arg}
    literals, read = dict[str, object](), list[str]()
    for name, default in kind.fixed:
        try:
            literals[name] = ast.literal_eval(given[name]) if name in given else default
        except ValueError:
            read.append(name)
    return LossModule(kind.op, literals, {}, tuple(read)) if {*read} <= {*kind.kept} else None


def _loss_called(name: str) -> ModuleClass | None:
    """The loss class called `name`, also by the file that torch has it in."""
    if name.startswith("torch.nn.modules."):
        name = "torch.nn." + name.rpartition(".")[2]
    kind = MODULES.get(name)
    return kind if kind is not None and kind.operands == 2 else None
