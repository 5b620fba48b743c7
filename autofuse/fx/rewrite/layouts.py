"""Keeps strides: a rewritten forward returns tensors with the original's strides, and passes such tensors to children.

Callers, children and unknown functions can observe a layout by `view`, `stride` or channels_last. Elementwise code
keeps the layout of its operands, but a fused operation may not. So both graphs run on fakes. Results get the original's
layout. If that layout depends on an argument's, the argument's layout is guarded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx

from autofuse import ops
from autofuse.fx.rewrite.node_builder import CannotBuild
from autofuse.fx.trace import grouped_products
from autofuse.fx.trace.attribute_reads import is_known
from autofuse.fx.trace.memory_order import order_in_memory
from autofuse.fx.trace.operation_names import is_harmless, operation_of
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.kernels.operation import OPERATIONS
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.torch_private.nested import mapped, tensors_in

Strides = tuple[int | None, ...]
_Layouts = dict[str, tuple[Any, ...]]  # node by which layouts are observed -> the strides of its operands
_Reorder = Callable[[Tensor], Tensor]
_Result = tuple[Any, list[Any], Any]  # the target of a node, its operands, its result
_RAISES = "raises"  # the key of an error in _Layouts


def copy_graph(graph: fx.Graph) -> fx.Graph:
    """A copy with the same node names, for a comparison after the rewrite."""
    result = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        nodes[node] = result.node_copy(node, nodes.__getitem__)
        nodes[node].name = node.name
    return result


def keep_layouts(trace: ForwardTrace, original: fx.Graph) -> None:
    """Give the results of `trace` the layouts that they have in `original`, and guard the layouts of arguments.

    Args:
        trace: The rewritten trace.
        original: The graph before the rewrite.

    Raises:
        CannotBuild: a child or an unknown function would observe another layout.
    """
    before = _GraphRuns(trace, original)
    after = _GraphRuns(trace, trace.graph, before)
    if before.observe()[_RAISES]:  # it does not run on fakes, so other layouts cannot be tried
        _guard_argument_layouts(trace, original, before.sources)
        return
    _restore_result_layouts(trace, before, after)
    if not _agree(before.observe(), after.observe()):
        raise CannotBuild(because(writing.OTHER_LAYOUT))
    if all(
        _agree(before.observe(reorder), before.observe()) and _agree(after.observe(reorder), after.observe())
        for reorder in _REORDERINGS
    ):
        return
    # Both graphs react to each other layout in the same way.
    if not after.may_choose_layout and all(
        _agree(before.observe(reorder), after.observe(reorder)) for reorder in _REORDERINGS
    ):
        return
    _guard_argument_layouts(trace, original, [s for s in before.sources if _layout_matters(before, after, s)])


def _layout_matters(before: _GraphRuns, after: _GraphRuns, source: str) -> bool:
    """Whether another layout of `source` may be observed differently after the rewrite."""
    return any(
        not _agree(before.observe(reorder, source), after.observe(reorder, source))
        or after.may_choose_layout and not _agree(before.observe(reorder, source), before.observe())
        for reorder in _REORDERINGS
    )  # fmt: skip


def _guard_argument_layouts(trace: ForwardTrace, original: fx.Graph, sources: list[str]) -> None:
    """Guard the layouts of the arguments in `sources`. If it has a result of a child, guard all arguments."""
    arguments = [n for n in original.nodes if n.op == "placeholder"]
    all_of_them = bool(set(sources) - {n.name for n in arguments})
    for node, text in zip(arguments, trace.inputs, strict=True):
        value = node.meta.get("v")
        if isinstance(value, Tensor) and value.dim() > 1 and (all_of_them or node.name in sources):
            order = order_in_memory(value)
            trace.guards.add(f"{text}.is_contiguous()" if value.is_contiguous() else f"_order({text}) == {order}")


class _GraphRuns:
    """Runs a graph on fakes, with other layouts of its sources: arguments, and results of children.

    A node runs only if its operands have other strides than in the trace and in the same run of `reference`, the graph
    before the rewrite.
    """

    def __init__(self, trace: ForwardTrace, graph: fx.Graph, reference: _GraphRuns | None = None) -> None:
        self._trace, self._graph = trace, graph
        # After a method that changes strides in place, the traced strides are not those that earlier nodes saw.
        moves = any(str(n.target) in _MOVES for n in graph.nodes)
        self._traced = {} if moves else {n.name: _traced_result(n) for n in graph.nodes}
        if reference is not None:  # new nodes were run when they were built
            self._traced |= reference._traced
        self._reference = reference
        self._results: dict[tuple[str, str], dict[str, _Result]] = {}
        sources = (n for n in graph.nodes if self._is_source(n))
        self.sources = [n.name for n in sources if next(_tensors(n.meta.get("v")), None) is not None]
        self._known: dict[tuple[str, str], _Layouts] = {}
        self.may_choose_layout = any(_may_choose_layout(n) for n in graph.nodes)

    def observe(self, reorder: _Reorder | None = None, source: str = "") -> _Layouts:
        """The layouts that are observed if `reorder` is applied to the value of `source`, "" for all sources."""
        key = getattr(reorder, "__name__", ""), source
        if key not in self._known:
            found: _Layouts = {_RAISES: ()}
            try:
                self._run(found, reorder, source, self._results.setdefault(key, {}))
            except Exception as error:  # `view` refuses some layouts
                found[_RAISES] = (type(error).__name__,)
            self._known[key] = found
        return self._known[key]

    def forget(self) -> None:
        """Discard all results, because the graph has changed."""
        self._known.clear()
        self._results.clear()

    def _run(self, found: _Layouts, reorder: _Reorder | None, source: str, results: dict[str, _Result]) -> None:
        others = self._reference._results.get((getattr(reorder, "__name__", ""), source), {}) if self._reference else {}
        values: dict[fx.Node, Any] = {}
        with self._trace.mode, torch.no_grad(), torch.random.fork_rng([]):
            for node in self._graph.nodes:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                if node.op == "output" or self._is_source(node) and node.op != "placeholder":
                    found[node.name] = tuple(strides(t) for t in _tensors((args, kwargs)))
                if node.op == "output":
                    break
                if self._is_source(node):
                    values[node] = self._source_value(node, reorder if source in ("", node.name) else None)
                    continue
                read = [values[n] for n in node.all_input_nodes]
                for known in (self._traced, others):
                    if node.name in known and _is_reusable(known[node.name], node, read):
                        values[node] = known[node.name][-1]
                        break
                else:
                    values[node] = self._compute(node, args, kwargs)
                results[node.name] = node.target, read, values[node]

    def _source_value(self, node: fx.Node, reorder: _Reorder | None) -> Any:
        value = node.meta.get("v")
        return value if reorder is None else mapped(lambda x: reorder(x) if isinstance(x, Tensor) else x, value)

    def _compute(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        if node.op == "get_attr":
            return operator.attrgetter(target)(self._trace.twin)
        if node.op == "call_module":
            return self._trace.twin.get_submodule(target).forward(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return grouped_products.run(target, args, kwargs)

    def _is_source(self, node: fx.Node) -> bool:
        """Whether the layouts of a node's result do not follow from those of its operands."""
        if node.op in ("placeholder", "call_module"):
            return node.op == "placeholder" or not is_known(type(self._trace.module.get_submodule(str(node.target))))
        if node.op not in ("call_function", "call_method") or _operation(node) is not None:
            return False
        if node.target in (operator.getitem, getattr) or operation_of(node) is not None or is_harmless(node):
            return False
        if node.op == "call_method":
            receiver = node.args[0].meta.get("v") if node.args and isinstance(node.args[0], fx.Node) else None
            return not isinstance(receiver, Tensor) or str(node.target) not in _TENSORS_OWN
        return str(getattr(node.target, "__module__", "")).partition(".")[0] not in ("torch", "_operator", "math")


def _traced_result(node: fx.Node) -> _Result:
    """The target, the operands and the result of a node in the trace."""
    return node.target, [n.meta.get("v") for n in node.all_input_nodes], node.meta.get("v")


def _is_reusable(known: _Result, node: fx.Node, read: list[Any]) -> bool:
    """Whether `known` is a result of the same operation on operands with the strides of `read`."""
    target, then, result = known
    alike = target == node.target and isinstance(result, Tensor) and len(then) == len(read)
    return alike and all(one is other or _have_same_strides(one, other) for one, other in zip(then, read, strict=True))


def _have_same_strides(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and one.stride() == other.stride()


# Methods that change the strides of their tensor in place. The trace knows only the last strides.
_MOVES = frozenset("t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_ resize_ resize_as_ set_".split())
_TENSORS_OWN = frozenset(n for n in dir(Tensor) if not n.startswith("__"))


def _operation(node: fx.Node) -> str | None:
    """The name of the operation of autofuse.ops that a node calls, or None."""
    name = getattr(node.target, "__name__", "")
    return name if node.op == "call_function" and getattr(ops, name, None) is node.target else None


def _may_choose_layout(node: fx.Node) -> bool:
    """Whether a kernel may return another layout than the plain torch code that runs on fakes."""
    name = _operation(node)
    if name is None or name not in OPERATIONS:
        return name is not None
    return OPERATIONS[name].has_choice and not OPERATIONS[name].keeps_layout


_DENSE = frozenset({"linear", "matmul", "bmm", "einsum", "contiguous"})  # always contiguous results


def _depends_on_layout_choice(node: fx.Node) -> bool:
    """Whether the layout of a value depends on a kernel that may choose another layout."""
    if _may_choose_layout(node):
        return True
    dense = node.op == "call_module" or getattr(node.target, "__name__", str(node.target)) in _DENSE
    return not dense and any(map(_depends_on_layout_choice, node.all_input_nodes))


def _restore_result_layouts(trace: ForwardTrace, before: _GraphRuns, after: _GraphRuns) -> None:
    """Convert the results to the original's layouts."""
    (output,) = (n for n in trace.graph.nodes if n.op == "output")
    returned = [n for n in _nodes(output.args) if isinstance(n.meta.get("v"), Tensor)]
    wanted, found = before.observe().get(output.name, ()), after.observe().get(output.name, ())
    if not len(returned) == len(wanted) == len(found):
        return
    for node, was, is_ in {n: (n, was, is_) for n, was, is_ in zip(returned, wanted, found, strict=True)}.values():
        order = _order(was, node.meta["v"])
        if order is not None and (was != is_ or _depends_on_layout_choice(node)):
            output.replace_input_with(node, _to_order(trace, node, order, output))
    after.forget()


def _nodes(args: Any) -> list[fx.Node]:
    found: list[fx.Node] = []

    def note(node: fx.Node) -> fx.Node:
        found.append(node)
        return node

    fx.node.map_arg(args, note)
    return found


def _order(wanted: Strides, like: Tensor) -> list[int] | None:
    """The dimensions in memory order, outermost first; None if the strides are not those of a dense tensor."""
    if wanted == strides(torch.empty(like.shape, device="meta")):
        return list(range(like.dim()))
    known = [(w if w is not None else 0, d) for d, w in enumerate(wanted)]
    # Dimensions of size 1 have no stride and may be anywhere in the order.
    order = sorted(range(like.dim()), key=lambda d: -known[d][0])
    dense = torch.empty([like.shape[d] for d in order], device="meta").permute(_inverse(order))
    return order if strides(dense) == wanted else None


def _inverse(order: list[int]) -> list[int]:
    return [order.index(d) for d in range(len(order))]


def _to_order(trace: ForwardTrace, node: fx.Node, order: list[int], place: fx.Node) -> fx.Node:
    if order == sorted(order):
        with trace.graph.inserting_before(place):
            result = trace.graph.call_method("contiguous", (node,))
        with trace.mode, torch.no_grad():
            result.meta["v"] = node.meta["v"].contiguous()
        return result
    with trace.graph.inserting_before(place):
        physical = trace.graph.call_method("permute", (node, *order))
        dense = trace.graph.call_method("contiguous", (physical,))
        result = trace.graph.call_method("permute", (dense, *_inverse(order)))
    with trace.mode, torch.no_grad():
        physical.meta["v"] = node.meta["v"].permute(order)
        dense.meta["v"] = physical.meta["v"].contiguous()
        result.meta["v"] = dense.meta["v"].permute(_inverse(order))
    return result


def strides(x: Tensor) -> Strides:
    """The strides; None for dimensions of size 1, whose strides have no effect."""
    if not x.numel():
        return (None,) * x.dim()
    return tuple(s if n > 1 else None for s, n in zip(x.stride(), x.shape, strict=True))


def _agree(one: _Layouts, other: _Layouts) -> bool:
    """Whether the nodes that observe layouts in both runs observe the same."""
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def _reverse_dimensions(x: Tensor) -> Tensor:
    """An empty tensor like `x` whose first dimension is innermost in memory."""
    order = list(range(x.dim()))[::-1]
    return x if x.dim() < 2 else _empty_in_order(x, order)


def _swap_last_two(x: Tensor) -> Tensor:
    """An empty tensor like `x` whose last two dimensions are swapped in memory."""
    order = list(range(x.dim()))
    return x if x.dim() < 2 else _empty_in_order(x, [*order[:-2], order[-1], order[-2]])


def _empty_in_order(x: Tensor, order: list[int]) -> Tensor:
    with torch.no_grad():
        result = torch.empty([x.shape[d] for d in order], dtype=x.dtype, device=x.device).permute(_inverse(order))
    return result.requires_grad_().clone() if x.requires_grad and x.is_floating_point() else result


def _tensors(value: Any) -> Iterator[Tensor]:
    return tensors_in(value, _parts)


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (tuple, list)) else ()


_REORDERINGS = (_reverse_dimensions, _swap_last_two)
