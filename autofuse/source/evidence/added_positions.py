"""Is what is added to the scores computed from positions, in another dtype than the query's?

Under autocast the scores are in half precision, what is added to them in float32, and so is their sum. The new call
takes the bias in the dtype of the query, so it is rounded first. For a learned bias that is rounding. Distances of
positions are large numbers: 500 and 501 are one number in bfloat16. Comparisons of positions give a mask, which is
exact. Knows captured values, and the expressions that the constructor assigns.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.canonical import LEAF
from autofuse.canonical.recognise.masks import BOOLEAN
from autofuse.ir.dtypes import CASTS, named_dtype
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, GLOBAL, ITEM, PARAMETER, TUPLE, Value, sides_of
from autofuse.rule import Fails
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.syntax import children, walk
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.reached import attribute_of_self, named, programs_own

_COUNTS = frozenset("arange cumsum linspace range cdist meshgrid cumulative_trapezoid logspace".split())
_EXACT = BOOLEAN | frozenset("eq ne lt le gt ge logical_not logical_and logical_or bool softmax sigmoid tanh".split())
_PRODUCTS = ("matmul", "einsum", "einops_einsum", "baddbmm")
_LEARNED = ("torch.nn.functional.embedding", "torch.nn.functional.linear")
_HALVES = frozenset({"float16", "bfloat16"})
_MOST = 4  # functions and attributes that are read one through the other


def positions_keep_their_dtype(claim: Claim) -> Iterator[Missing | Fails]:
    """What is computed from positions is added in the dtype that the query has."""
    mask = claim.site.captures.get("mask")
    if claim.site.rule.replacement.operation != "attention" or mask is None:
        return
    for side in sides_of(mask):
        if side.op not in BOOLEAN and _counts(claim, side):
            what = named(claim, side, "what is added to the scores")
            yield Missing(f"assumes that {what} may be rounded to the dtype of the query, as under autocast")
            return


def _counts(claim: Claim, mask: Value) -> bool:
    """Whether a value that is added holds numbers that count positions, and is not in the dtype of the query."""
    todo, seen = [mask], set[Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        own = programs_own(claim, v)
        if v.op in _EXACT or own and any(_in_dtype_of_query(claim, o) for o in own):
            continue
        if any(_says_count(claim, o) for o in (own or [v])):
            return True
        todo += _added(own[0] if own and v.op == LEAF else v)
    return False


def _added(v: Value) -> tuple[Value, ...]:
    """The inputs of `v` whose numbers its own come from: not a test, an index, or what a layer is given."""
    if v.op in ("where", CHOICE):
        return v.inputs[1:]
    if v.op in ("masked_fill", "keep"):
        return (v.inputs[0], v.inputs[-1])
    if v.op == CALL:  # what a layer, or a function of another file, makes of positions is not known to be large
        name = str(v.data[0]) if isinstance(v.data, tuple) else ""
        layer = not v.inputs or attribute_of_self(v.inputs[0]) is not None or name in _LEARNED
        return v.inputs if name.startswith((".", "torch.")) and not layer else ()
    if v.op == ITEM or v.op in CASTS:
        return v.inputs[:1]
    return () if v.op in _EXACT or v.op == "linear" else v.inputs


def _in_dtype_of_query(claim: Claim, v: Value) -> bool:
    """Whether a value has the dtype of the query, of the key, or of the scores, by its own spelling."""
    if v.op in CASTS:
        dtype = claim.view.facts.dtype(v)
    elif v.inputs and v.inputs[-1].op == TUPLE and v.op in _MAKERS:
        read = [o for o in v.inputs[-1].inputs if o.op == ATTRIBUTE and o.data == "dtype"]
        dtype = named_dtype(read[0], claim.view.facts.dtype) if read else frozenset()
    else:
        return False
    return bool(dtype) and (dtype <= _HALVES or dtype in _dtypes_of_operands(claim))


_MAKERS = frozenset("arange ones zeros full tensor ones_like zeros_like full_like".split())


def _dtypes_of_operands(claim: Claim) -> set[object]:
    facts = claim.view.facts
    operands = [o for n in ("query", "key") for o in programs_own(claim, claim.site.captures[n])]
    scores = [v for v in claim.site.doomed.values if v.op in _PRODUCTS]
    return {facts.dtype(v) for v in (*operands, *scores)}


def _says_count(claim: Claim, v: Value) -> bool:
    if v.op in _COUNTS:
        return True
    if v.op == CALL and isinstance(v.data, tuple):
        if str(v.data[0]).rpartition(".")[2] in _COUNTS:
            return True
        called = _called(claim, v)
        return called is not None and _expression_counts(claim, called, _MOST)
    name = attribute_of_self(v)
    held = _held(claim, name) if name else None
    return held is not None and _expression_counts(claim, held, _MOST)


def _called(claim: Claim, call: Value) -> Function | None:
    """The function of the file that a call is of: alibi(n), self.alibi(n)."""
    function = call.inputs[0] if call.inputs else None
    if function is None or function.op not in (GLOBAL, ATTRIBUTE):
        return None
    scope, name = claim.defined.scope, str(function.data)
    if function.op == ATTRIBUTE:
        return scope.method(claim.defined.owner, name) if function.inputs[0].op == PARAMETER else None
    return scope.functions.get(name)


def _held(claim: Claim, name: str) -> ast.expr | None:
    scope, owner = claim.defined.scope, claim.defined.owner
    return scope.buffer(owner, name) or scope.attribute(owner, name)


def _expression_counts(claim: Claim, node: ast.AST, depth: int) -> bool:
    """Whether code that makes a tensor counts positions, and does not only compare them or make a triangle of them."""
    if depth == 0 or isinstance(node, ast.Compare):
        return False
    scope, owner = claim.defined.scope, claim.defined.owner
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in _COUNTS:
            return not isinstance(node.func, ast.Name)
        if name in ("Parameter", "Embedding", "Linear", "Sequential"):
            return False
        function = scope.functions.get(name) if isinstance(node.func, ast.Name) else None
        if function is not None and _expression_counts(claim, function, depth - 1):
            return True
    if isinstance(node, ast.Subscript):
        return _expression_counts(claim, node.value, depth)  # an index looks up numbers
    if isinstance(node, ast.Name) and owner is not None and isinstance(node.ctx, ast.Load):
        values = _local_values(owner.methods.get("__init__"), node.id)
        return any(_expression_counts(claim, v, depth - 1) for v in values)
    return any(_expression_counts(claim, c, depth) for c in children(node))


def _local_values(function: Function | None, name: str) -> list[ast.expr]:
    found = [] if function is None else [n for n in walk(function) if isinstance(n, ast.Assign)]
    return [n.value for n in found if any(isinstance(t, ast.Name) and t.id == name for t in n.targets)]
