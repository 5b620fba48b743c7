"""Does a file show the settings of what a call makes? `print(optimizer)` tells `fused: True` from `fused: None`.

Follows the names that hold what the call makes: what it is assigned to, and what a call of the function that returns it
is assigned to. Judges names, so it may find a read of something else. Knows syntax.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from functools import partial

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.find.training_loops import Nesting

_SHOWS = frozenset("print pprint repr str format vars dir warn debug info warning error critical log write".split())
_SETTINGS = frozenset({"defaults", "__dict__", "__repr__", "__str__", "__getstate__"})
_LISTS = frozenset({"param_groups", "state_dict"})
_WHOLE = frozenset("keys items values copy get pop popitem".split())
_OPTIMIZERS = "torch.optim."


def line_that_shows(
    call: ast.Call, name: str, added: Collection[str], scope: FileScope, nesting: Nesting
) -> int:  # fmt: skip
    """The first line that shows or reads a setting that an edit adds to what `call` makes; 0 where none does."""
    if not added or not name.startswith(_OPTIMIZERS):
        return 0
    made, held = {id(call)}, set[str]()
    for statement in nesting.around(call):
        held |= _holders(statement[1], scope)
    shows = partial(_shows, is_made=lambda n: id(n) in made or _last(n) in held, held=held, added=frozenset(added))
    return min((n.lineno for n in walk(scope.tree) if isinstance(n, ast.expr) and shows(n)), default=0)


def _holders(around: ast.AST, scope: FileScope) -> set[str]:
    """The names that hold what an expression inside of `around` gives."""
    match around:
        case ast.Assign(targets=targets):
            return {name for t in targets for n in walk(t) if (name := _last(n))} - {"self", "cls"}
        case ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
            return {_last(target)}
        case ast.Return():
            return {name for f in walk(scope.tree) if isinstance(f, Function) and any(n is around for n in walk(f))
                    for name in _assigned_from(f.name, scope)}  # fmt: skip
    return set()


def _assigned_from(function: str, scope: FileScope) -> Iterator[str]:
    """The names that are assigned what `function` returns, alone or among others."""
    for n in walk(scope.tree):
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and _last(n.value.func) == function:
            yield from (name for t in n.targets for part in walk(t) if (name := _last(part)))


def _shows(n: ast.expr, is_made: Callable[[ast.expr], bool], held: set[str], added: frozenset[str]) -> bool:
    match n:
        case ast.Call(func=function, args=args) if _last(function) in _SHOWS:
            return any(_is_whole(a, is_made) for a in args)
        case ast.FormattedValue(value=value):
            return _is_whole(value, is_made)
        case ast.BinOp(op=ast.Mod(), left=ast.Constant(str()), right=right):
            return any(_is_whole(p, is_made) for p in (right.elts if isinstance(right, ast.Tuple) else [right]))
        case ast.Attribute(value=value, attr=name) if name in _SETTINGS:
            return is_made(value)
        case ast.Subscript(value=value, slice=ast.Constant(key)) if key in added:
            return any(isinstance(p, ast.expr) and is_made(p) for p in walk(value)) or _last(value) in _GROUPS
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _WHOLE:
            return not is_made(value) and _is_whole(value, is_made)
    return False


_GROUPS = frozenset({"group", "g", "pg", "param_group", "groups"})


def _is_whole(node: ast.expr, is_made: Callable[[ast.expr], bool]) -> bool:
    """Whether an expression is the object, or its groups of settings: `opt`, `opt.param_groups[0]`."""
    while True:
        if is_made(node):
            return True
        match node:
            case ast.Subscript(value=value, slice=slice) if not _is_other_setting(slice):
                node = value
            case ast.Attribute(value=value, attr=name) if name in _LISTS:
                return is_made(value)
            case ast.Call(func=ast.Attribute(attr="state_dict") as function):
                node = function
            case ast.Call(func=ast.Name(id="repr" | "str" | "dict" | "list" | "sorted"), args=[value]):
                node = value
            case _:
                return False


def _is_other_setting(key: ast.expr) -> bool:
    """`["lr"]`: one setting, by its name, which no edit adds."""
    return isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value not in _LISTS


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
