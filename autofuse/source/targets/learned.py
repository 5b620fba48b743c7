"""Is a mask learned by the module whose layers give the query? Then it is floating-point, and of the query's dtype.

Layers and parameters of one module have one dtype (docs/safety.md). Follows views, indices and sums. Knows the
constructor of the class; writes nothing.
"""

from __future__ import annotations

import ast

from autofuse.ir.floating import is_layer
from autofuse.ir.graph import ATTRIBUTE, CALL, ITEM, PARAMETER, Value
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import OPS
from autofuse.source.capture.scope import ClassScope, FileScope
from autofuse.source.targets.express import Speller

_PARAMETERS = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
_LAYERS = frozenset({"torch.nn.Embedding", "torch.nn.Linear"})
_CASTS = frozenset("to type_as float double half bfloat16".split())


def learned_in_its_dtype(mask: Value, query: Value, s: Speller) -> bool:
    """Whether layers of one module give the mask and the query, and no step of attention is cast."""
    if s.owner is None or any(v.op in _CASTS for v in s.gone) or s.result is not None and s.result.op in _CASTS:
        return False
    masks, queries = s.view.originals(mask), s.view.originals(query)
    learned = all(_is_learned(o, s.owner, s.imports.scope) for o in masks)
    return bool(masks and queries) and learned and all(_is_of_layer(o) for o in queries)


def _is_learned(v: Value, owner: ClassScope, scope: FileScope) -> bool:
    spend()
    if v.op in ("add", "sub") and len(v.inputs) == 2:
        return all(_is_learned(i, owner, scope) for i in v.inputs)
    v = _viewed(v)
    if is_layer(v):
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


def _is_of_layer(v: Value) -> bool:
    """Whether a layer gives `v`, which may be scaled, normed by a child, cut into parts and laid out otherwise."""
    while True:
        v = _viewed(v)
        if v.op in ("mul", "div") and v.inputs:
            v = v.inputs[0]
        elif v.op == CALL and len(v.inputs) == 2 and v.inputs[0].op == ATTRIBUTE:
            v = v.inputs[1]
        else:
            return is_layer(v)


def _viewed(v: Value) -> Value:
    while v.inputs and (v.op in (ITEM, "rearrange", "contiguous") or v.op in OPS and OPS[v.op].effect == "view"):
        v = v.inputs[0]
    return v
