"""Rewrites sums over all experts so that they take the chosen experts only."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from autofuse.fx.rewrite.experts.dense_experts import DenseExperts, find_dense_experts, rest_of, tokens_in
from autofuse.fx.rewrite.experts.expert_sums import ExpertSum, find_expert_sums
from autofuse.fx.rewrite.experts.labels import shape_of
from autofuse.fx.rewrite.experts.reads import check_reads, erase_new
from autofuse.fx.rewrite.experts.row_values import NotByRow, PairRows, RowValues
from autofuse.fx.trace.expert_segments import ROWS
from autofuse.fx.trace.expert_spellings import node_name
from autofuse.fx.trace.operation_names import erase_dead, replace_node
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.ops.chosen_pairs import chosen_rows, sum_over_experts
from autofuse.ops.experts import each_expert, expert_linear


def find_sums(graph: fx.Graph) -> list[DenseExperts | ExpertSum]:
    """Every sum over all experts of which few terms count."""
    return [*find_dense_experts(graph), *find_expert_sums(graph)]


def rewrite_sum(trace: ForwardTrace, found: DenseExperts | ExpertSum, is_token_wise: Callable[[fx.Node], bool]) -> bool:
    """Compute the chosen experts only. Returns False, and changes nothing, if a step does not compute by row."""
    graph = trace.graph
    before = set(graph.nodes)
    with graph.inserting_before(found.end):
        try:
            values = _row_values(trace, found, is_token_wise)
            made = _from_weights(values, found) if isinstance(found, DenseExperts) else _from_calls(values, found)
            check_reads(graph, before, found.end)
            _check_users(values, found, before)
        except NotByRow:
            erase_new(graph, before)
            return False
    made.meta = dict(found.end.meta)
    made.meta.pop("writes", None)
    replace_node(found.end, made)
    additions = found.additions() if isinstance(found, ExpertSum) else []  # they may write in place
    erase_dead(graph, {*values.calls, *additions})
    return True


def _row_values(
    trace: ForwardTrace, found: DenseExperts | ExpertSum, is_token_wise: Callable[[fx.Node], bool]
) -> RowValues:
    graph, index = trace.graph, found.index
    sizes = shape_of(found.weights if isinstance(found, DenseExperts) else found.weights[0])[:-1]
    choices = shape_of(index)[-1] if len(shape_of(index)) == len(sizes) + 1 else 1
    sorts = graph.call_function(chosen_rows, (index, found.experts, choices))
    with trace.mode:
        example = tuple(torch.empty(ROWS, dtype=torch.int64, device=index.meta["v"].device) for _ in range(2))
        sorts.meta.update(v=(*example, torch.empty(found.experts, dtype=torch.int64)))
    parts = [graph.call_function(operator.getitem, (sorts, i)) for i in range(3)]
    for node, value in zip((sorts, *parts), (sorts.meta["v"], *sorts.meta["v"]), strict=True):
        node.meta.update(v=value, place=found.end.meta.get("place"))
    rows = PairRows(parts[0], parts[1], parts[2], found.experts, math.prod(sizes))
    root: Any = trace.module
    return RowValues(graph, rows, trace.mode, root, is_token_wise)


def _from_weights(values: RowValues, found: DenseExperts) -> fx.Node:
    rest = rest_of(found.terms, found.end)
    if "E" in rest or "M" in rest or rest.lstrip("T").strip("F") or tokens_in(rest) != tokens_in(found.like.labels):
        raise NotByRow
    rows = [values.of(t.node, t.labels) for t in found.terms]
    total = _multiplied(values, found, rows) if len(rows) == 2 else rows[0]
    dims = tuple(d for d, label in enumerate(found.like.labels) if label == "T")
    return _summed(values, total, found.like.node, dims)


def _from_calls(values: RowValues, found: ExpertSum) -> fx.Node:
    total, weights = found.contributions(values)
    return _summed(values, total, weights, tuple(range(len(shape_of(weights)) - 1)))


def _summed(values: RowValues, rows: fx.Node, like: fx.Node, dims: tuple[int, ...]) -> fx.Node:
    return values.call("call_function", sum_over_experts, (rows, values.rows.token, values.rows.ends, like, dims))


def _multiplied(values: RowValues, found: DenseExperts, rows: list[fx.Node]) -> fx.Node:
    """The product of the weight of each row with the rows of the experts' results."""
    features = [t.labels.count("F") for t in found.terms]
    if node_name(found.end) in ("matmul", "bmm"):  # (T, 1, E) @ (T, E, D) keeps the dimension of one entry
        return values.call("call_method", "unsqueeze", (_scaled(values, rows, features), 1))
    return _scaled(values, rows, features)


def _scaled(values: RowValues, rows: list[fx.Node], features: list[int]) -> fx.Node:
    one, other = rows
    if features[0] == 0 and features[1]:
        one = values.call("call_method", "unsqueeze", (one, -1))
    elif features[1] == 0 and features[0]:
        other = values.call("call_method", "unsqueeze", (other, -1))
    if max(features) > 1:
        raise NotByRow
    return values.call("call_function", torch.mul, (one, other))


def _check_users(values: RowValues, found: DenseExperts | ExpertSum, before: set[fx.Node]) -> None:
    """Check that nothing else uses the results of all experts, and that there is a product by expert."""
    for node in values.replaced - {found.end}:
        if any(u not in values.replaced and u is not found.end and u in before for u in node.users):
            raise NotByRow
    if not any(n.target in (expert_linear, each_expert) for n in found.end.graph.nodes if n not in before):
        raise NotByRow
