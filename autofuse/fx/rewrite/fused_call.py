"""Replaces the code that a rule matched by the fused call, in an fx graph."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx

from autofuse import ops
from autofuse.canonical import View
from autofuse.canonical.recognise.likelihoods import ONE_EACH, UNDERFLOW
from autofuse.fx.rewrite.after_expression import build_step, kernel_name
from autofuse.fx.rewrite.causal_mask import ensure_square, guard_buffers, unneeded_arguments
from autofuse.fx.rewrite.excerpt import Excerpt, build_excerpt
from autofuse.fx.rewrite.graph_capture import CapturedTrace
from autofuse.fx.rewrite.loss_rows import guard_one_target_each
from autofuse.fx.rewrite.node_builder import Builder, CannotBuild
from autofuse.fx.rewrite.size_reads import size_replacements
from autofuse.fx.rewrite.unsaved_operands import mark_unsaved_operands
from autofuse.fx.trace.attribute_reads import is_known
from autofuse.fx.trace.operation_names import dead_nodes, replace_node
from autofuse.match.site import ReplacedValue, Site
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.rule import Constant, Holds


def rewrite(captured: CapturedTrace, view: View, site: Site) -> Excerpt:
    """Replace the results of a site by a fused call, and erase the nodes that only they needed.

    Args:
        captured: The trace and its dataflow graph. Its fx graph is edited.
        view: The canonical view of the dataflow graph.
        site: The match.

    Returns:
        The replaced and the new code.

    Raises:
        CannotBuild: a value that the call needs is not available. The graph still computes the same.
    """
    graph = captured.trace.graph
    nodes = [captured.nodes[r.value] for r in site.results]
    first = min(nodes, key=list(graph.nodes).index)
    before = set(graph.nodes)
    try:
        with graph.inserting_before(first):
            new_results = _build_results(captured, view, site, nodes, Builder(captured, view, site, first))
        replaced = {
            **dict(zip(nodes, new_results, strict=True)),
            **size_replacements(captured, site, nodes, new_results),
        }
    except CannotBuild:
        # Users come after their operands, so nodes are erased from the end.
        for node in reversed(graph.nodes):
            if node not in before:
                graph.erase_node(node)
        raise
    # The excerpt needs the arguments from before results are replaced.
    operands = {node: (node.args, node.kwargs) for node in before}
    for old, new in replaced.items():
        _share_example_memory(captured, old, new)
        replace_node(old, new)
    old_nodes = _removed_nodes(captured, site)
    new_nodes = [n for n in graph.nodes if n not in before]
    mark_unsaved_operands(new_nodes, old_nodes, operands, captured.inlined_traces, replaced)
    pairs = list(zip(nodes, new_results, strict=True))
    operation = site.rule.replacement.operation
    made_excerpt = build_excerpt(operation, old_nodes, new_nodes, pairs, operands, _default_kernel(site, new_nodes))
    for node in old_nodes:
        graph.erase_node(node)
    return made_excerpt


def _share_example_memory(captured: CapturedTrace, old: fx.Node, new: Any) -> None:
    """Give the example value of `new` the memory of that of `old`, so that aliasing is seen as before."""
    was, is_ = old.meta.get("v"), new.meta.get("v") if isinstance(new, fx.Node) else None
    if isinstance(was, Tensor) and isinstance(is_, Tensor) and was.shape == is_.shape:
        with suppress(RuntimeError), captured.trace.mode, torch.no_grad():  # if the strides exceed the memory
            new.meta["v"] = was if was.stride() == is_.stride() else was.as_strided(is_.shape, is_.stride())


def _build_results(
    captured: CapturedTrace, view: View, site: Site, nodes: list[fx.Node], builder: Builder
) -> list[fx.Node]:
    """The results of the fused call, in the order of the nodes that they replace."""
    fused = _build_fused_call(captured, view, site, builder)
    new_results = [fused] if len(nodes) == 1 else [builder.get_item(fused, i) for i in range(len(nodes))]
    return [_match_layout_and_dtype(builder, m, n, r) for m, n, r in zip(new_results, nodes, site.results, strict=True)]


def _build_fused_call(captured: CapturedTrace, view: View, site: Site, builder: Builder) -> fx.Node:
    """The node of the rule's `after`."""
    replacement = site.rule.replacement
    if replacement.expression is not None:
        built = {name: builder.build(v) for name, v in site.captures.items()}
        node: fx.Node = build_step(builder, replacement.expression, built)
        return node
    positional, named = _build_arguments(captured, view, site, builder)
    return builder.call_function(getattr(ops, replacement.operation), positional, named)


def _build_arguments(
    captured: CapturedTrace, view: View, site: Site, builder: Builder
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the fused call. If the code omits one, the operation's default holds."""
    built = {name: builder.build(v) for name, v in site.captures.items()}
    arguments = dict(site.rule.replacement.arguments)
    if "mask" in built:
        guard_buffers(captured, view, site.captures["mask"])
    if "mask_is_causal" in arguments and arguments["mask_is_causal"] in built and "mask" in built:
        left_out = unneeded_arguments(built)
        if "mask" in left_out and ensure_square(captured, built):
            arguments["is_causal"] = arguments.pop("mask_is_causal")
            built = {name: b for name, b in built.items() if name not in left_out}
    if isinstance(site.verdict, Holds) and ONE_EACH in site.verdict.why:
        guard_one_target_each(captured, built)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, source in site.rule.replacement.arguments:
        name = name if name in arguments or not name else "is_causal"
        if not isinstance(source, Constant) and source not in built:
            continue
        value = source.value if isinstance(source, Constant) else built[source]
        if name:
            named[name] = value
        else:
            positional.append(value)
    if isinstance(site.verdict, Holds) and UNDERFLOW in site.verdict.why:
        named["of_probabilities"] = True
    return tuple(positional), named


def _match_layout_and_dtype(builder: Builder, fused: fx.Node, original: fx.Node, result: ReplacedValue) -> fx.Node:
    """`fused` with the layout and dtype of the result that it replaces. Raises CannotBuild if the shape differs."""
    fused = builder.permute(fused, result.permutation)
    if result.negated:
        fused = builder.call_method("neg", fused)
    wanted, found = original.meta.get("v"), fused.meta.get("v")
    if not isinstance(wanted, Tensor) or not isinstance(found, Tensor):
        return fused
    if wanted.shape != found.shape:
        raise CannotBuild(because(writing.OTHER_SHAPE, found=tuple(found.shape), wanted=tuple(wanted.shape)))
    if wanted.dtype != found.dtype:
        fused = builder.call_method("to", fused, wanted.dtype)
    # A user such as `view` fails on other strides, so the result must be contiguous like the original.
    strict = wanted.is_contiguous() and not all(_takes_any_layout(builder.captured, user) for user in original.users)
    return builder.call_method("contiguous", fused) if strict else fused


_ANY_LAYOUT = frozenset(
    "transpose permute reshape contiguous flatten add mul matmul to softmax unsqueeze linear dropout".split()
)


def _takes_any_layout(captured: CapturedTrace, user: fx.Node) -> bool:
    """Whether a user of a result works for every memory layout, unlike `view`. See layouts.py."""
    if user.op == "output":
        return True
    if user.op == "call_module":
        return is_known(type(captured.trace.module.get_submodule(str(user.target))))
    return getattr(user.target, "__name__", str(user.target)) in _ANY_LAYOUT


def _default_kernel(site: Site, new_nodes: list[fx.Node]) -> str:
    """The default kernel of the fused call for the operands in the trace."""
    operation = site.rule.replacement.operation
    if site.rule.replacement.expression is not None:
        return kernel_name(operation)
    fused = next(n for n in new_nodes if n.target is getattr(ops, operation))
    args, kwargs = fx.node.map_arg((fused.args, fused.kwargs), lambda n: n.meta["v"])
    return ops.kernel_of(operation, *args, **kwargs)


def _removed_nodes(captured: CapturedTrace, site: Site) -> list[fx.Node]:
    """The nodes that only the replaced results needed, including child calls and reads of sizes."""
    old_nodes = {
        captured.nodes[v]
        for v in (*site.removed.values, *site.removed.shared, *(r.value for r in site.results))
        if v in captured.nodes
    }
    return dead_nodes(captured.trace.graph, {n for n in old_nodes if n.op not in ("placeholder", "output")})


__all__ = ["CannotBuild", "rewrite"]
