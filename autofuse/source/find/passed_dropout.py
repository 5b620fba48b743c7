"""Finds dropout layers that every caller passes to a function: `attention(q, k, v, dropout=self.dropout)`.

The function alone does not show what such a parameter is. If all callers in the given files pass an `nn.Dropout` or
None, the function is read again as if that were written there. An edit that depends on this is unsafe and names the
callers. This module only collects facts about calls; caller_assumptions.py decides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.scope import DefinedFunction, FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.find.result_uses import FindImporters, ReturnedElement, find_calls, function_around
from autofuse.source.find.training_loops import Nesting

_LAYER = "torch.nn.Dropout"
_NAME = "an nn.Dropout"  # not an identifier, so it cannot hide a name of the file


@dataclass(frozen=True)
class PassedDropout:
    """A parameter that callers pass a dropout layer, and the places (file, line) of these calls."""

    parameter: str
    callers: tuple[tuple[str, int], ...]


def called_parameters(defined: DefinedFunction) -> set[str]:
    """The names of the parameters that a function calls."""
    if not isinstance(defined.function, Function):
        return set()
    calls = (n.func for n in walk(defined.function) if isinstance(n, ast.Call))
    return {c.id for c in calls if isinstance(c, ast.Name)}.intersection(_parameters(defined))


def find_passed_dropout(defined: DefinedFunction, importers: FindImporters) -> Iterator[PassedDropout]:
    """Yields the parameters that the function calls and that every caller passes an nn.Dropout or None."""
    function, names = defined.function, _parameters(defined)
    returned = ReturnedElement(function, defined.owner.node.name if defined.owner is not None else "", defined.scope, 0)
    calls = [
        (scope, call, is_argument)
        for scope in (defined.scope, *importers(defined.scope, returned.call_name))
        for call, is_argument in find_calls(returned, scope)
    ]
    defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
    for name in sorted(called_parameters(defined)):
        arguments = [
            (scope, call, None if is_argument else _argument(call, names.index(name), name, defaults))
            for scope, call, is_argument in calls
        ]
        layers = [
            (str(scope.file or ""), call.lineno)
            for scope, call, argument in arguments
            if _is_layer(argument, call, scope)
        ]
        if layers and all(
            _is_layer(argument, call, scope) or _is_none(argument) for scope, call, argument in arguments
        ):
            yield PassedDropout(name, tuple(dict.fromkeys(layers)))


def _parameters(defined: DefinedFunction) -> list[str]:
    return [
        p.arg for p in [*defined.function.args.posonlyargs, *defined.function.args.args][defined.owner is not None :]
    ]


def has_dropout(tree: ast.Module) -> bool:
    """Whether a file mentions dropout layers."""
    nodes = node_index(tree)
    if any("Dropout" in n.attr for n in nodes.of(ast.Attribute)) or any("Dropout" in n.id for n in nodes.of(ast.Name)):
        return True
    named = (*nodes.of(ast.alias), *nodes.of(ast.ClassDef), *nodes.functions())
    return any("Dropout" in n.name for n in named)


def assume_dropout(defined: DefinedFunction, layers: tuple[PassedDropout, ...]) -> DefinedFunction:
    """A copy of `defined` in which each of these parameters is an nn.Dropout or None."""
    # Stands for an nn.Dropout or None, because callers may pass either.
    layer = ast.IfExp(ast.Constant(True), ast.Call(ast.Name(_NAME, ast.Load()), [], []), ast.Constant(None))
    scope = replace(defined.scope, qualified_names={**defined.scope.qualified_names, _NAME: _LAYER})
    return replace(defined, scope=scope, module_parameters=tuple((each.parameter, layer) for each in layers))


def _argument(call: ast.Call, index: int, name: str, defaults: dict[str, ast.expr]) -> ast.expr | None:
    """The argument for a parameter, or its default. None if there is neither, or if the call has `*` or `**`."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    if index < len(call.args):
        return call.args[index]
    return next((k.value for k in call.keywords if k.arg == name), defaults.get(name))


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_layer(node: ast.expr | None, call: ast.Call, scope: FileScope) -> bool:
    """Whether an argument is `self.name`, and the class of the caller assigns an nn.Dropout to it."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return False
    nesting = scope.index(Nesting)
    method = function_around(nesting, call)
    cls = nesting.parents.get(method) if method is not None else None
    if not isinstance(cls, ast.ClassDef) or not method or not method.args.args:
        return False
    if node.value.id != method.args.args[0].arg:
        return False
    assigned = scope.attribute(scope.class_scope(cls), node.attr)
    return isinstance(assigned, ast.Call) and scope.name_of(assigned.func) == _LAYER
