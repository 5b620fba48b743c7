"""Finds code that reads the settings of an optimizer that a call makes.

An edit that adds `fused=True` to the call changes what `print(optimizer)` shows: `fused: True`, not `fused: None`.

The search follows the names that hold the optimizer: the target of the assignment, and the target of a call to the
function that returns it. It compares names only, so it may report a read of another object.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from functools import partial

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.find.training_loops import Nesting

_PRINTING_CALLS = frozenset(
    "print pprint repr str format vars dir warn debug info warning error critical log write".split()
)
_PRINTING_ATTRIBUTES = frozenset({"defaults", "__dict__", "__repr__", "__str__", "__getstate__"})
_SETTINGS_ATTRIBUTES = frozenset({"param_groups", "state_dict"})
_DICT_METHODS = frozenset("keys items values copy get pop popitem".split())
_OPTIMIZERS = "torch.optim."


def first_settings_read(call: ast.Call, name: str, added: Collection[str], scope: FileScope, nesting: Nesting) -> int:
    """Finds the first line that prints or reads a setting which an edit adds to the result of `call`.

    Args:
        call: the call that makes the object.
        name: the qualified name of the called function. Only `torch.optim` is searched.
        added: the keywords that the edit adds.
        scope: the file.
        nesting: the parents of its nodes.

    Returns:
        The line number, or 0 if no line does.
    """
    if not added or not name.startswith(_OPTIMIZERS):
        return 0
    made_ids, holders = {id(call)}, set[str]()
    for _, parent in nesting.around(call):
        holders |= _holders(parent, scope)
    reads_settings = partial(
        _reads_settings,
        is_object=lambda node: id(node) in made_ids or _last_name(node) in holders,
        held=holders,
        added=frozenset(added),
        single=frozenset(_containers_of_one_setting(scope.tree)),
    )
    return min(
        (node.lineno for node in walk(scope.tree) if isinstance(node, ast.expr) and reads_settings(node)), default=0
    )


def _holders(statement: ast.AST, scope: FileScope) -> set[str]:
    """The names that hold the value of an expression inside `statement`."""
    match statement:
        case ast.Assign(targets=targets):
            return {name for target in targets for node in walk(target) if (name := _last_name(node))} - {"self", "cls"}
        case ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
            return {_last_name(target)}
        case ast.Return():
            around = (f for f in walk(scope.tree) if isinstance(f, Function) and any(n is statement for n in walk(f)))
            return {name for function in around for name in _assigned_from(function.name, scope)}
    return set()


def _assigned_from(function: str, scope: FileScope) -> Iterator[str]:
    """Yields the names that are assigned the result of `function`, alone or as part of a tuple."""
    for node in walk(scope.tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and _last_name(node.value.func) == function
        ):
            yield from (name for target in node.targets for part in walk(target) if (name := _last_name(part)))


def _reads_settings(
    node: ast.expr, is_object: Callable[[ast.expr], bool], held: set[str], added: frozenset[str], single: frozenset[int]
) -> bool:
    """Whether an expression shows the whole object, or reads one of the added settings.

    Args:
        node: the expression.
        is_object: whether an expression is the object.
        held: the names that hold the object.
        added: the settings that the edit adds.
        single: the ids of expressions from which only one other setting is read.
    """
    match node:
        case ast.Call(func=function, args=args) if _last_name(function) in _PRINTING_CALLS:
            return any(_is_object_or_settings(argument, is_object) for argument in args)
        case ast.FormattedValue(value=value):
            return _is_object_or_settings(value, is_object)
        # "%s" % optimizer
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(str()), right=right):
            return any(
                _is_object_or_settings(part, is_object)
                for part in (right.elts if isinstance(right, ast.Tuple) else [right])
            )
        case ast.Attribute(value=value, attr=attribute) if attribute in _PRINTING_ATTRIBUTES:
            return is_object(value)
        # optimizer.param_groups[0]["fused"], or group["fused"] in a loop over the groups
        case ast.Subscript(value=value, slice=ast.Constant(key)) if key in added:
            return (
                any(isinstance(part, ast.expr) and is_object(part) for part in walk(value))
                or _last_name(value) in _GROUP_NAMES
            )
        # copy.deepcopy(optimizer).state_dict()["param_groups"]
        case ast.Subscript(value=value, slice=ast.Constant("param_groups")) if id(node) not in single:
            return any(isinstance(part, ast.expr) and is_object(part) for part in walk(value))
        # optimizer.param_groups[0].items()
        case ast.Call(func=ast.Attribute(value=value, attr=attribute)) if attribute in _DICT_METHODS:
            return not is_object(value) and _is_object_or_settings(value, is_object)
    return False


def _containers_of_one_setting(tree: ast.AST) -> Iterator[int]:
    """Yields the ids of `x["param_groups"]` and the like in `x["param_groups"][0]["lr"]`."""
    for node in walk(tree):
        if isinstance(node, ast.Subscript) and _is_other_setting(node.slice):
            inner = node.value
            while isinstance(inner, ast.Subscript):
                yield id(inner)
                inner = inner.value


_GROUP_NAMES = frozenset({"group", "g", "pg", "param_group", "groups"})


def _is_object_or_settings(node: ast.expr, is_object: Callable[[ast.expr], bool]) -> bool:
    """Whether an expression is the object or all its settings: `opt`, `opt.param_groups[0]`, `repr(opt)`."""
    while True:
        if is_object(node):
            return True
        match node:
            case ast.Subscript(value=value, slice=slice) if not _is_other_setting(slice):
                node = value
            case ast.Attribute(value=value, attr=attribute) if attribute in _SETTINGS_ATTRIBUTES:
                return is_object(value)
            case ast.Call(func=ast.Attribute(attr="state_dict") as function):
                node = function
            case ast.Call(func=ast.Name(id="repr" | "str" | "dict" | "list" | "sorted"), args=[value]):
                node = value
            case ast.Call(func=function, args=[value]) if _last_name(function) in ("copy", "deepcopy"):
                node = value
            case _:
                return False


def _is_other_setting(key: ast.expr) -> bool:
    """Whether a key names one setting, such as `["lr"]`. The caller has tested for added settings before."""
    return isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value not in _SETTINGS_ATTRIBUTES


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
