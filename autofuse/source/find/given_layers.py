"""Dropout that every caller hands a function: `attention(q, k, v, dropout=self.dropout)`.

What a parameter is cannot be seen in the function. Where all callers in the given files hand it an `nn.Dropout`, or
None, the function is read as if that were written there. An edit that rests on it is unsafe and names the callers.
Knows calls and classes; decides nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import Defined, FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.find.result_uses import Returned, Users, calls_of, function_around
from autofuse.source.find.training_loops import Nesting

_LAYER = "torch.nn.Dropout"
_NAME = "an nn.Dropout"  # no name of a program's, so that it hides none


@dataclass(frozen=True)
class GivenLayer:
    """A parameter that callers give a dropout layer: where they do, as (file, line)."""

    parameter: str
    callers: tuple[tuple[str, int], ...]


def calls_parameters(d: Defined) -> set[str]:
    """The parameters of a function that it calls."""
    if not isinstance(d.function, Function):
        return set()
    calls = (n.func for n in walk(d.function) if isinstance(n, ast.Call))
    return {c.id for c in calls if isinstance(c, ast.Name)}.intersection(_parameters(d))


def given_layers(d: Defined, users: Users) -> Iterator[GivenLayer]:
    """The parameters of a function that it calls, and that every caller gives an nn.Dropout or None."""
    function, names = d.function, _parameters(d)
    returned = Returned(function, d.owner.node.name if d.owner is not None else "", d.scope, 0)
    calls = [(s, c, handed) for s in (d.scope, *users(d.scope)) for c, handed in calls_of(returned, s)]
    defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
    for name in sorted(calls_parameters(d)):
        given = [(s, c, None if handed else _argument(c, names.index(name), name, defaults)) for s, c, handed in calls]
        layers = [(str(s.file or ""), c.lineno) for s, c, a in given if _is_layer(a, c, s)]
        if layers and all(_is_layer(a, c, s) or _is_none(a) for s, c, a in given):
            yield GivenLayer(name, tuple(dict.fromkeys(layers)))


def _parameters(d: Defined) -> list[str]:
    return [p.arg for p in [*d.function.args.posonlyargs, *d.function.args.args][d.owner is not None :]]


def has_dropout(tree: ast.Module) -> bool:
    """Whether a file speaks of dropout layers."""
    named = (n.attr if isinstance(n, ast.Attribute) else getattr(n, "name", getattr(n, "id", "")) for n in walk(tree))
    return any("Dropout" in name for name in named if isinstance(name, str))


def with_layers(d: Defined, layers: tuple[GivenLayer, ...]) -> Defined:
    """`d` as it is read where each of these parameters is an nn.Dropout or None."""
    layer = ast.IfExp(ast.Constant(True), ast.Call(ast.Name(_NAME, ast.Load()), [], []), ast.Constant(None))
    scope = replace(d.scope, qualified={**d.scope.qualified, _NAME: _LAYER})
    return replace(d, scope=scope, given=tuple((g.parameter, layer) for g in layers))


def _argument(call: ast.Call, at: int, name: str, defaults: dict[str, ast.expr]) -> ast.expr | None:
    """What a call gives a parameter; None where that cannot be told."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    if at < len(call.args):
        return call.args[at]
    return next((k.value for k in call.keywords if k.arg == name), defaults.get(name))


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_layer(node: ast.expr | None, call: ast.Call, scope: FileScope) -> bool:
    """Whether an argument is `self.name` of a class that assigns an nn.Dropout to it."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return False
    nesting = scope.index(Nesting)
    method = function_around(nesting, call)
    owner = nesting.parents.get(method) if method is not None else None
    if not isinstance(owner, ast.ClassDef) or not method or not method.args.args:
        return False
    if node.value.id != method.args.args[0].arg:
        return False
    made = scope.attribute(scope.class_scope(owner), node.attr)
    return isinstance(made, ast.Call) and scope.name_of(made.func) == _LAYER
