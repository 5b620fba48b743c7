"""Puts a site's fused call into an fx graph, in place of what the rule matched.

Knows fx and the table of spellings; decides nothing about what may be rewritten.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx

from autofuse import ops
from autofuse.canonical import View
from autofuse.canonical.recognise.likelihoods import ONE_EACH, UNDERFLOW
from autofuse.fx.rewrite.after_expression import applied, kernel_name
from autofuse.fx.rewrite.causal_mask import guard_buffers, is_square, needless
from autofuse.fx.rewrite.excerpt import Excerpt, excerpt
from autofuse.fx.rewrite.graph_capture import CapturedTrace
from autofuse.fx.rewrite.loss_rows import guard_one_target_each
from autofuse.fx.rewrite.node_builder import Builder, CannotBuild
from autofuse.fx.rewrite.size_reads import sizes_elsewhere
from autofuse.fx.rewrite.unsaved_operands import mark
from autofuse.fx.trace.attribute_reads import is_known
from autofuse.fx.trace.operation_names import dead_nodes, replace_node
from autofuse.match.site import ReplacedValue, Site
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.rule import Constant, Holds


def rewrite(captured: CapturedTrace, view: View, site: Site) -> Excerpt:
    """Replace the site's results by the fused operation and drop what only they needed; what was replaced by what.

    Raises CannotBuild, leaving the graph as it computes now, where a value that the call needs is not available.
    """
    graph = captured.trace.graph
    nodes = [captured.nodes[r.value] for r in site.results]
    first = min(nodes, key=list(graph.nodes).index)
    before = set(graph.nodes)
    try:
        with graph.inserting_before(first):
            made = _made(captured, view, site, nodes, Builder(captured, view, site, first))
        replaced = {**dict(zip(nodes, made, strict=True)), **sizes_elsewhere(captured, site, nodes, made)}
    except CannotBuild:
        for node in reversed(graph.nodes):
            if node not in before:
                graph.erase_node(node)
        raise
    operands = {node: (node.args, node.kwargs) for node in before}
    for old, new in replaced.items():
        _take_over_memory(captured, old, new)
        replace_node(old, new)
    gone = _gone(captured, site)
    come = [n for n in graph.nodes if n not in before]
    mark(come, gone, operands, captured.entered, replaced)
    pairs = list(zip(nodes, made, strict=True))
    operation = site.rule.replacement.operation
    taken = excerpt(operation, gone, come, pairs, operands, _kernel(site, come))
    for node in gone:
        graph.erase_node(node)
    return taken


def _take_over_memory(captured: CapturedTrace, old: fx.Node, new: Any) -> None:
    """The example value of `new` lies where that of `old` lay: views of it, and writes through them, are told so."""
    was, is_ = old.meta.get("v"), new.meta.get("v") if isinstance(new, fx.Node) else None
    if isinstance(was, Tensor) and isinstance(is_, Tensor) and was.shape == is_.shape:
        with suppress(RuntimeError), captured.trace.mode, torch.no_grad():  # where it does not fit there
            new.meta["v"] = was if was.stride() == is_.stride() else was.as_strided(is_.shape, is_.stride())


def _made(captured: CapturedTrace, view: View, site: Site, nodes: list[fx.Node], builder: Builder) -> list[fx.Node]:
    """The fused call's results, in the order of those that they replace."""
    fused = _fused(captured, view, site, builder)
    made = [fused] if len(nodes) == 1 else [builder.item(fused, i) for i in range(len(nodes))]
    return [_like(builder, m, n, r) for m, n, r in zip(made, nodes, site.results, strict=True)]


def _fused(captured: CapturedTrace, view: View, site: Site, builder: Builder) -> fx.Node:
    """The node of what the rule's `after` returns."""
    replacement = site.rule.replacement
    if replacement.expression is not None:
        built = {name: builder.build(v) for name, v in site.captures.items()}
        made: fx.Node = applied(builder, replacement.expression, built)
        return made
    positional, named = _arguments(captured, view, site, builder)
    return builder.call(getattr(ops, replacement.operation), positional, named)


def _arguments(
    captured: CapturedTrace, view: View, site: Site, builder: Builder
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the fused call; those the code leaves out keep the operation's defaults."""
    built = {name: builder.build(v) for name, v in site.captures.items()}
    arguments = dict(site.rule.replacement.arguments)
    if "mask" in built:
        guard_buffers(captured, view, site.captures["mask"])
    if "mask_is_causal" in arguments and arguments["mask_is_causal"] in built and "mask" in built:
        left_out = needless(built)
        if "mask" in left_out and is_square(captured, built):
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


def _like(builder: Builder, made: fx.Node, original: fx.Node, result: ReplacedValue) -> fx.Node:
    """`made` in the layout and dtype of what it replaces. Raises CannotBuild where its shape is another."""
    made = builder.permuted(made, result.permutation)
    wanted, found = original.meta.get("v"), made.meta.get("v")
    if not isinstance(wanted, Tensor) or not isinstance(found, Tensor):
        return made
    if wanted.shape != found.shape:
        raise CannotBuild(because(writing.OTHER_SHAPE, found=tuple(found.shape), wanted=tuple(wanted.shape)))
    if wanted.dtype != found.dtype:
        made = builder.method("to", made, wanted.dtype)
    strict = wanted.is_contiguous() and not all(_takes_any_layout(builder.captured, user) for user in original.users)
    return builder.method("contiguous", made) if strict else made


_ANY_LAYOUT = frozenset(
    "transpose permute reshape contiguous flatten add mul matmul to softmax unsqueeze linear dropout".split()
)


def _takes_any_layout(captured: CapturedTrace, user: fx.Node) -> bool:
    """Whether a user of a result does not mind in which order it lies in memory (`view` does); see layouts.py."""
    if user.op == "output":
        return True
    if user.op == "call_module":
        return is_known(type(captured.trace.module.get_submodule(str(user.target))))
    return getattr(user.target, "__name__", str(user.target)) in _ANY_LAYOUT


def _kernel(site: Site, come: list[fx.Node]) -> str:
    """What runs the fused call by default, on such operands as the trace saw."""
    operation = site.rule.replacement.operation
    if site.rule.replacement.expression is not None:
        return kernel_name(operation)
    fused = next(n for n in come if n.target is getattr(ops, operation))
    args, kwargs = fx.node.map_arg((fused.args, fused.kwargs), lambda n: n.meta["v"])
    return ops.kernel_of(operation, *args, **kwargs)


def _gone(captured: CapturedTrace, site: Site) -> list[fx.Node]:
    """What only the replaced results needed: calls of children too, whoever asked for a size on the way."""
    gone = {captured.nodes[v] for v in (*site.removed.values, *(r.value for r in site.results)) if v in captured.nodes}
    return dead_nodes(captured.trace.graph, {n for n in gone if n.op not in ("placeholder", "output")})


__all__ = ["CannotBuild", "rewrite"]
