"""Checks that rounding an attention bias to the dtype of the query does not change position numbers.

Under autocast the scores have a half-precision dtype. A bias in float32 makes their sum float32. The fused call takes
the bias in the dtype of the query, so the bias is rounded first.

- A learned bias loses only a rounding error.
- A bias that counts positions can lose more: 500 and 501 are the same number in bfloat16.
- A comparison of positions gives a boolean mask, which is exact.

The check reads captured values and the expressions that the constructor assigns.
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
from autofuse.source.evidence.site_values import describe_value, program_values, self_attribute_name

_COUNTING_FUNCTIONS = frozenset("arange cumsum linspace range cdist meshgrid cumulative_trapezoid logspace".split())
_EXACT_OR_SMALL = BOOLEAN | frozenset(
    "eq ne lt le gt ge logical_not logical_and logical_or bool softmax sigmoid tanh".split()
)
_PRODUCTS = ("matmul", "einsum", "einops_einsum", "baddbmm")
_LEARNED_FUNCTIONS = ("torch.nn.functional.embedding", "torch.nn.functional.linear")
_HALF_DTYPES = frozenset({"float16", "bfloat16"})
_MAX_DEPTH = 4  # how many functions and attributes are followed, one inside the other


def positions_keep_their_dtype(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports a bias that counts positions and has another dtype than the query."""
    mask = claim.site.captures.get("mask")
    if claim.site.rule.replacement.operation != "attention" or mask is None:
        return
    for side in sides_of(mask):
        if side.op not in BOOLEAN and _counts_positions(claim, side):
            bias = describe_value(claim, side, "the bias that is added to the scores")
            yield Missing(f"assumes that {bias} may be rounded to the dtype of query, key and value, as under autocast")
            return


def _counts_positions(claim: Claim, mask: Value) -> bool:
    """Whether `mask` holds numbers that count positions, in another dtype than the query's."""
    todo, seen = [mask], set[Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        originals = program_values(claim, v)
        if v.op in _EXACT_OR_SMALL or originals and any(_has_dtype_of_query(claim, o) for o in originals):
            continue
        if any(_is_count(claim, o) for o in (originals or [v])):
            return True
        todo += _numeric_inputs(originals[0] if originals and v.op == LEAF else v)
    return False


def _numeric_inputs(v: Value) -> tuple[Value, ...]:
    """Returns the inputs that the numbers of `v` come from: no conditions, no indices, no inputs of layers."""
    if v.op in ("where", CHOICE):
        return v.inputs[1:]
    if v.op in ("masked_fill", "keep"):
        return (v.inputs[0], v.inputs[-1])
    if v.op == CALL:
        # A layer, or a function of another file, may turn positions into small numbers.
        name = str(v.data[0]) if isinstance(v.data, tuple) else ""
        layer = not v.inputs or self_attribute_name(v.inputs[0]) is not None or name in _LEARNED_FUNCTIONS
        return v.inputs if name.startswith((".", "torch.")) and not layer else ()
    if v.op == ITEM or v.op in CASTS:
        return v.inputs[:1]
    return () if v.op in _EXACT_OR_SMALL or v.op == "linear" else v.inputs


def _has_dtype_of_query(claim: Claim, v: Value) -> bool:
    """Whether the expression of `v` itself gives it the dtype of the query, the key or the scores."""
    if v.op in CASTS:
        dtype = claim.view.facts.dtype(v)
    elif v.inputs and v.inputs[-1].op == TUPLE and v.op in _CREATION_FUNCTIONS:
        dtype_reads = [o for o in v.inputs[-1].inputs if o.op == ATTRIBUTE and o.data == "dtype"]
        dtype = named_dtype(dtype_reads[0], claim.view.facts.dtype) if dtype_reads else frozenset()
    else:
        return False
    return bool(dtype) and (dtype <= _HALF_DTYPES or dtype in _operand_dtypes(claim))


# Functions that create a tensor and take its dtype as a keyword argument.
_CREATION_FUNCTIONS = frozenset("arange ones zeros full tensor ones_like zeros_like full_like".split())


def _operand_dtypes(claim: Claim) -> set[object]:
    facts = claim.view.facts
    operands = [o for n in ("query", "key") for o in program_values(claim, claim.site.captures[n])]
    scores = [v for v in claim.site.removed.values if v.op in _PRODUCTS]
    return {facts.dtype(v) for v in (*operands, *scores)}


def _is_count(claim: Claim, v: Value) -> bool:
    if v.op in _COUNTING_FUNCTIONS:
        return True
    if v.op == CALL and isinstance(v.data, tuple):
        if str(v.data[0]).rpartition(".")[2] in _COUNTING_FUNCTIONS:
            return True
        function = _called_function(claim, v)
        return function is not None and _expression_counts_positions(claim, function, _MAX_DEPTH)
    name = self_attribute_name(v)
    assigned = _assigned_expression(claim, name) if name else None
    return assigned is not None and _expression_counts_positions(claim, assigned, _MAX_DEPTH)


def _called_function(claim: Claim, call: Value) -> Function | None:
    """Returns the function of this file that `call` calls: `alibi(n)`, `self.alibi(n)`."""
    function = call.inputs[0] if call.inputs else None
    if function is None or function.op not in (GLOBAL, ATTRIBUTE):
        return None
    scope, name = claim.defined.scope, str(function.data)
    if function.op == ATTRIBUTE:
        return scope.method(claim.defined.owner, name) if function.inputs[0].op == PARAMETER else None
    return scope.functions.get(name)


def _assigned_expression(claim: Claim, name: str) -> ast.expr | None:
    scope, owner = claim.defined.scope, claim.defined.owner
    return scope.buffer(owner, name) or scope.attribute(owner, name)


def _expression_counts_positions(claim: Claim, node: ast.AST, depth: int) -> bool:
    """Whether `node` computes numbers that count positions. A comparison or a triangular mask is not a count."""
    if depth == 0 or isinstance(node, ast.Compare):
        return False
    scope, owner = claim.defined.scope, claim.defined.owner
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in _COUNTING_FUNCTIONS:
            return not isinstance(node.func, ast.Name)
        if name in ("Parameter", "Embedding", "Linear", "Sequential"):
            return False
        function = scope.functions.get(name) if isinstance(node.func, ast.Name) else None
        if function is not None and _expression_counts_positions(claim, function, depth - 1):
            return True
    if isinstance(node, ast.Subscript):
        return _expression_counts_positions(claim, node.value, depth)  # an index selects numbers, it adds none
    if isinstance(node, ast.Name) and owner is not None and isinstance(node.ctx, ast.Load):
        values = _assigned_values(owner.methods.get("__init__"), node.id)
        return any(_expression_counts_positions(claim, v, depth - 1) for v in values)
    return any(_expression_counts_positions(claim, c, depth) for c in children(node))


def _assigned_values(function: Function | None, name: str) -> list[ast.expr]:
    assignments = [] if function is None else [n for n in walk(function) if isinstance(n, ast.Assign)]
    return [n.value for n in assignments if any(isinstance(t, ast.Name) and t.id == name for t in n.targets)]
