"""Is a mask learned by the same module that has the query's layers?

Such a mask is floating-point and has the dtype of the query, because the layers and parameters of one module share a
dtype (docs/safety.md). This file follows views, indices and sums, and reads the constructor of the class. It writes no
text.
"""

from __future__ import annotations

import ast

from autofuse.ir.floating import is_linear_layer
from autofuse.ir.graph import ATTRIBUTE, CALL, ITEM, PARAMETER, Value
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import OPS
from autofuse.source.capture.scope import ClassScope, FileScope
from autofuse.source.targets.speller import Speller

_PARAMETERS = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
_LAYERS = frozenset({"torch.nn.Embedding", "torch.nn.Linear"})
_CASTS = frozenset("to type_as float double half bfloat16".split())


def is_learned_in_query_dtype(mask: Value, query: Value, speller: Speller) -> bool:
    """Whether layers of one module return both mask and query, and no step of the attention is a cast."""
    if (
        speller.owner is None
        or any(v.op in _CASTS for v in speller.removed_values)
        or speller.result is not None
        and speller.result.op in _CASTS
    ):
        return False
    masks, queries = speller.view.originals(mask), speller.view.originals(query)
    is_learned = all(_is_learned(o, speller.owner, speller.imports.scope) for o in masks)
    return bool(masks and queries) and is_learned and all(_is_from_layer(o) for o in queries)


def _is_learned(v: Value, owner: ClassScope, scope: FileScope) -> bool:
    """Whether a parameter or a layer of the class gives `v`, perhaps through sums and views."""
    spend()
    if v.op in ("add", "sub") and len(v.inputs) == 2:
        return all(_is_learned(i, owner, scope) for i in v.inputs)
    v = _without_views(v)
    if is_linear_layer(v):
        return True
    attribute = v.inputs[0] if v.op == CALL and v.inputs else v
    if attribute.op != ATTRIBUTE or attribute.inputs[0].op != PARAMETER or attribute.inputs[0].data != "self":
        return False
    assigned = scope.attribute(owner, str(attribute.data))
    if not isinstance(assigned, ast.Call) or any(k.arg == "dtype" for n in ast.walk(assigned) for k in _keywords(n)):
        return False
    return scope.name_of(assigned.func) in (_LAYERS if v.op == CALL else _PARAMETERS)


def _keywords(node: ast.AST) -> list[ast.keyword]:
    return node.keywords if isinstance(node, ast.Call) else []


def _is_from_layer(v: Value) -> bool:
    """Whether a layer returns `v`, perhaps followed by scaling, a norm, splitting or a change of layout."""
    while True:
        v = _without_views(v)
        if v.op in ("mul", "div") and v.inputs:
            v = v.inputs[0]
        elif v.op == CALL and len(v.inputs) == 2 and v.inputs[0].op == ATTRIBUTE:
            v = v.inputs[1]
        else:
            return is_linear_layer(v)


def _without_views(v: Value) -> Value:
    while v.inputs and (v.op in (ITEM, "rearrange", "contiguous") or v.op in OPS and OPS[v.op].effect == "view"):
        v = v.inputs[0]
    return v
