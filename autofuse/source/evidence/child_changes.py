"""Which children of a class a file changes in place: `m.softmax.forward = f`, `self.softmax.dim = 1`.

The child stays, but computes something else. Weights, biases and the mode are no such change: an edit passes them on.
Knows changes and scopes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from autofuse.ir.vocabulary import MODULES
from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.changes import CodeChange, aliased
from autofuse.source.evidence.matching import concerns, is_module, is_of
from autofuse.source.evidence.names_read import NamesRead, NameUse
from autofuse.source.evidence.receivers import classes_of, is_self

_CODE = frozenset("forward __class__ __call__ _call_impl _slow_forward _wrapped_call_impl _modules".split())
# What a module of torch's reads in its forward, apart from its weights.
_SETTINGS = frozenset(
    """
    dim p inplace eps approximate negative_slope alpha beta threshold value lambd lower upper min_val max_val
    normalized_shape num_features num_groups num_channels affine elementwise_affine momentum track_running_stats
    start_dim end_dim unflattened_size num_parameters lower_bound upper_bound
    """.split()
)
CODE_AND_SETTINGS = _CODE | _SETTINGS


def changed_children(
    change: CodeChange, scope: FileScope, read: NamesRead, families: dict[int, frozenset[str]]
) -> Iterator[NameUse]:
    """The children among `read` that compute something else after `change`, which the file of `scope` makes.

    `families`: the classes that may have each of `read.names`, by the id of the use.
    """
    if change.kind != "assigned" or change.receiver is None or not _counts(change) or is_self(change):
        return
    for r in read.names:
        made = r.scope.attribute(r.owner, r.name) if r.owner is not None else None
        if made is None or not is_module(made) or not (change.name in _CODE or _of_torch(made, r.scope)):
            continue
        if _is_child(change, scope, r, made, families[id(r)]):
            yield r


def may_change_children(change: CodeChange) -> bool:
    """Whether a change is one of what a module computes."""
    return change.kind == "assigned" and change.receiver is not None and _counts(change)


def _counts(change: CodeChange) -> bool:
    if change.name is not None:
        return change.name in _CODE or change.name in _SETTINGS
    return isinstance(change.receiver, ast.Attribute)  # setattr(m.softmax, name, value)


def _is_child(change: CodeChange, scope: FileScope, r: NameUse, made: ast.expr, family: frozenset[str]) -> bool:
    """Whether what is changed may be the child that `r` names."""
    held = change.receiver
    held = aliased(held, change.function) if held is not None else None
    while isinstance(held, ast.Subscript):
        held = held.value
    match held:
        case ast.Attribute(value=holder, attr=name):
            return concerns(replace(change, kind="hooked", name=name, receiver=holder), scope, r, family)
        case ast.Call(func=ast.Attribute(attr="get_submodule"), args=[ast.Constant(value=str(path))]):
            return path.rpartition(".")[2] == r.name
        case ast.Call(func=ast.Name(id="getattr"), args=[holder, ast.Constant(value=str(name)), *_]):
            return concerns(replace(change, kind="hooked", name=name, receiver=holder), scope, r, family)
    kinds = classes_of(scope, change)
    return kinds is None or is_of(made, r.scope, kinds)


def _of_torch(made: ast.expr, scope: FileScope) -> bool:
    return any(isinstance(n, ast.Call) and scope.name_of(n.func) in MODULES for n in walk(made))
