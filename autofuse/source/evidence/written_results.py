"""Checks that nothing writes in place to a result that the fused call saves for the gradient.

`out.zero_()` after a written-out attention is allowed, because a matrix product does not save its result. After
scaled_dot_product_attention it raises an error in the backward pass. The engine declines writes that the graph shows
(autofuse/match/legality.py). This check is about methods and functions in place that the vocabulary lacks, about
`inplace=True`, and about calls for their effects.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from autofuse.ir.graph import ATTRIBUTE, CALL, GLOBAL, TUPLE, Value
from autofuse.ir.vocabulary import OPS
from autofuse.match.legality import has_unused_result, memory_of, written_in_place
from autofuse.reasons import matches
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.writes import written_outer_names
from autofuse.source.evidence.calls_between import CALL_THEIR_ARGUMENT, is_harmless_call, text_of_call
from autofuse.source.evidence.claim import Claim, Missing

_WRITE_NOTHING = frozenset("requires_grad_ retain_grad register_hook backward append extend insert add put log".split())


def result_is_not_written(claim: Claim) -> Iterator[Missing | Fails]:
    """Fails if the code writes to the result in place; reports calls that may."""
    results = {r.value for r in claim.site.results}
    if not claim.site.rule.rule.saves_result:
        return
    for v in claim.captured.graph.values[min(r.serial for r in results) :]:
        if v.op == CALL and _gets(v, results) and not is_harmless_call(claim, v):
            name = str(v.data[0]).rpartition(".")[2] if isinstance(v.data, tuple) else ""
            into_result = _writes_into(v, results)
            if name in _WRITE_NOTHING and not into_result:
                continue
            if into_result or written_in_place(name):
                yield Fails(because(matches.RESULT_WRITTEN), next(iter(results)), use=v)
            elif (
                has_unused_result(claim.captured.graph, v) or name in CALL_THEIR_ARGUMENT or _writes_arguments(claim, v)
            ):
                yield Missing(f"assumes that {text_of_call(claim, v)} does not write to the result")
        elif v.op in OPS and v.inputs and _is_part(v.inputs[0], results) and _is_in_place(claim, v):
            yield Fails(because(matches.RESULT_WRITTEN), next(iter(results)), use=v)


def _gets(call: Value, results: Collection[Value]) -> bool:
    """Whether a call gets a result as an argument, in a container, or as the receiver of its method."""
    todo = list(call.inputs)
    while todo:
        v = todo.pop()
        if _is_part(v, results):
            return True
        if v.op in (ATTRIBUTE, TUPLE, CALL):
            todo += v.inputs
    return False


def _writes_into(call: Value, results: Collection[Value]) -> bool:
    """Whether a call writes into a result or a part of it: `torch.add(x, 1, out=result.detach())`."""
    keywords = call.data[1] if isinstance(call.data, tuple) else ()
    if "out" not in keywords:
        return False
    out = call.inputs[len(call.inputs) - len(keywords) + keywords.index("out")]
    return _is_part(out, results) or out.op in (ATTRIBUTE, TUPLE, CALL) and _gets(out, results)


def _is_part(v: Value, results: Collection[Value]) -> bool:
    return any(base in results for base in memory_of(v, through_parts=True))


def _writes_arguments(claim: Claim, call: Value) -> bool:
    """Whether a function of the file writes to its arguments."""
    function = call.inputs[0] if call.inputs else call
    called = claim.defined.scope.functions.get(str(function.data)) if function.op == GLOBAL else None
    return called is not None and bool(written_outer_names(called))


def _is_in_place(claim: Claim, v: Value) -> bool:
    """Whether an operation is written with `inplace=True`, in the call or in the constructor of its module."""
    scope, owner = claim.defined.scope, claim.defined.owner
    for place in claim.captured.positions.get(v, ()):
        function = place.node.func if isinstance(place.node, ast.Call) else None
        made = function if isinstance(function, ast.Call) else None
        if isinstance(function, ast.Attribute):
            made = scope.attribute(owner, function.attr)  # type: ignore[assignment]
        calls = (c for c in (place.node, made) if isinstance(c, ast.Call))
        if any(_says_in_place(call) for call in calls):
            return True
    return False


def _says_in_place(call: ast.Call) -> bool:
    named = any(k.arg == "inplace" and _is_true(k.value) for k in call.keywords)
    return named or any(map(_is_true, call.args))


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True
