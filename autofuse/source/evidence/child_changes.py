"""Finds the child modules that a file changes in place: `m.softmax.forward = f`, `self.softmax.dim = 1`.

The child is the same object, but it computes something else. A change of weights, biases or the training mode does not
count, because the edited code reads these from the child at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from autofuse.ir.vocabulary import MODULES
from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.change_matching import is_module_expression, may_be_instance_of, may_change_name
from autofuse.source.evidence.changes import CodeChange, resolve_alias
from autofuse.source.evidence.names_read import NamesRead, NameUse
from autofuse.source.evidence.receivers import is_own_instance, receiver_classes

# Attributes that hold the code of a module.
_CODE = frozenset("forward __class__ __call__ _call_impl _slow_forward _wrapped_call_impl _modules".split())
# Attributes that the forward of a torch module reads, apart from its weights.
_SETTINGS = frozenset(
    """
    dim p inplace eps approximate negative_slope alpha beta threshold value lambd lower upper min_val max_val
    normalized_shape num_features num_groups num_channels affine elementwise_affine momentum track_running_stats
    start_dim end_dim unflattened_size num_parameters lower_bound upper_bound
    """.split()
)
CODE_AND_SETTINGS = _CODE | _SETTINGS


def find_changed_children(
    change: CodeChange, scope: FileScope, read: NamesRead, families: dict[int, frozenset[str]]
) -> Iterator[NameUse]:
    """Yields the children that compute something else after a change.

    Args:
        change: A change that the file of `scope` makes.
        scope: The file that makes the change.
        read: The names that the edited function reads.
        families: For each use in `read.names`, by its id: the names of the classes that may have the attribute.
    """
    if change.kind != "assigned" or change.receiver is None or not _alters_module(change) or is_own_instance(change):
        return
    for r in read.names:
        child = r.scope.attribute(r.owner, r.name) if r.owner is not None else None
        if child is None or not is_module_expression(child):
            continue
        # The settings are those of torch's modules. Other modules may have unrelated attributes of these names.
        if not (change.name in _CODE or _contains_torch_module(child, r.scope)):
            continue
        if _changes_child(change, scope, r, child, families[id(r)]):
            yield r


def may_change_children(change: CodeChange) -> bool:
    """Whether a change may alter what a child module computes."""
    return change.kind == "assigned" and change.receiver is not None and _alters_module(change)


def _alters_module(change: CodeChange) -> bool:
    if change.name is not None:
        return change.name in _CODE or change.name in _SETTINGS
    return isinstance(change.receiver, ast.Attribute)  # setattr(m.softmax, name, value)


def _changes_child(change: CodeChange, scope: FileScope, r: NameUse, child: ast.expr, family: frozenset[str]) -> bool:
    """Whether the receiver of `change` may be the child that `r` names."""
    receiver = change.receiver
    receiver = resolve_alias(receiver, change.function) if receiver is not None else None
    while isinstance(receiver, ast.Subscript):
        receiver = receiver.value
    match receiver:
        case ast.Attribute(value=holder, attr=name):
            return may_change_name(replace(change, kind="hooked", name=name, receiver=holder), scope, r, family)
        case ast.Call(func=ast.Attribute(attr="get_submodule"), args=[ast.Constant(value=str(path))]):
            return path.rpartition(".")[2] == r.name
        case ast.Call(func=ast.Name(id="getattr"), args=[holder, ast.Constant(value=str(name)), *_]):
            return may_change_name(replace(change, kind="hooked", name=name, receiver=holder), scope, r, family)
    kinds = receiver_classes(scope, change)
    return kinds is None or may_be_instance_of(child, r.scope, kinds)


def _contains_torch_module(child: ast.expr, scope: FileScope) -> bool:
    return any(isinstance(n, ast.Call) and scope.name_of(n.func) in MODULES for n in walk(child))
