"""Keeps the strides of results: a rewritten forward returns, and passes on, tensors with the strides of the original.

A caller sees the layout of what is returned, a child and an unknown function that of what they are given: `view`,
`stride`, channels_last. Elementwise code keeps the layout of its operands, and a fused operation may not. So both
graphs are run on fakes: results get the original's layout, and where that follows from an argument's, the argument's
layout is guarded. Knows graphs and strides; knows no rule.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx

from autofuse import ops
from autofuse.fx.rewrite.node_builder import CannotBuild
from autofuse.fx.trace.attribute_reads import is_known
from autofuse.fx.trace.memory_order import order_in_memory
from autofuse.fx.trace.operation_names import is_harmless, operation_of
from autofuse.fx.trace.tracer import ForwardTrace
from autofuse.kernels.operation import OPERATIONS
from autofuse.reasons import writing
from autofuse.reasons.reason import because
from autofuse.torch_private.nested import mapped, tensors_in

Strides = tuple[int | None, ...]
_Seen = dict[str, tuple[Any, ...]]  # who sees values, by name -> how these lie in memory
_Turn = Callable[[Tensor], Tensor]
_Result = tuple[Any, list[Any], Any]  # what a node calls, the values of the nodes it reads, and what came out
_RAISES = "raises"  # among those who see


def copy_of(graph: fx.Graph) -> fx.Graph:
    """A graph with nodes of the same names, to be compared with after a rewrite."""
    made = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        nodes[node] = made.node_copy(node, nodes.__getitem__)
        nodes[node].name = node.name
    return made


def keep_layouts(trace: ForwardTrace, original: fx.Graph) -> None:
    """Give what `trace` returns the layout that `original` gives it; guard what that rests on.

    Raises CannotBuild where somebody would see another layout.
    """
    before = _Run(trace, original)
    after = _Run(trace, trace.graph, before)
    if before.seen()[_RAISES]:  # it does not run on fakes alone: nothing is known of other layouts
        _guard_layouts(trace, original, before.sources)
        return
    _lay_out_results(trace, before, after)
    if not _same(before.seen(), after.seen()):
        raise CannotBuild(because(writing.OTHER_LAYOUT))
    if all(_same(before.seen(turn), before.seen()) and _same(after.seen(turn), after.seen()) for turn in _TURNS):
        return
    if not after.chooses and all(_same(before.seen(turn), after.seen(turn)) for turn in _TURNS):
        return
    _guard_layouts(trace, original, [s for s in before.sources if _matters(before, after, s)])


def _matters(before: _Run, after: _Run, source: str) -> bool:
    """Whether the layout of `source` may be seen in another way after the rewrite than before."""
    return any(
        not _same(before.seen(turn, source), after.seen(turn, source))
        or after.chooses and not _same(before.seen(turn, source), before.seen())
        for turn in _TURNS
    )  # fmt: skip


def _guard_layouts(trace: ForwardTrace, original: fx.Graph, rests_on: list[str]) -> None:
    """Guard the layouts of the arguments among `rests_on`; where a child's result is among them, of all arguments."""
    arguments = [n for n in original.nodes if n.op == "placeholder"]
    all_of_them = bool(set(rests_on) - {n.name for n in arguments})
    for node, text in zip(arguments, trace.inputs, strict=True):
        value = node.meta.get("v")
        if isinstance(value, Tensor) and value.dim() > 1 and (all_of_them or node.name in rests_on):
            order = order_in_memory(value)
            trace.guards.add(f"{text}.is_contiguous()" if value.is_contiguous() else f"_order({text}) == {order}")


class _Run:
    """Runs of a graph on fakes, in which the layouts of what comes from elsewhere may be others.

    A node is run only where what it reads lies in another way than in the trace, and than in the same run of
    `reference`, the graph before its rewrite.
    """

    def __init__(self, trace: ForwardTrace, graph: fx.Graph, reference: _Run | None = None) -> None:
        self._trace, self._graph = trace, graph
        moves = any(str(n.target) in _MOVES for n in graph.nodes)
        self._traced = {} if moves else {n.name: _traced(n) for n in graph.nodes}
        if reference is not None:  # what is new in the graph was run when it was made
            self._traced |= reference._traced
        self._reference = reference
        self._results: dict[tuple[str, str], dict[str, _Result]] = {}
        sources = (n for n in graph.nodes if self._is_source(n))
        self.sources = [n.name for n in sources if next(_tensors(n.meta.get("v")), None) is not None]
        self._known: dict[tuple[str, str], _Seen] = {}
        self.chooses = any(_may_be_laid_out_otherwise(n) for n in graph.nodes)

    def seen(self, turn: _Turn | None = None, source: str = "") -> _Seen:
        """What is seen where the values of `source`, or of all sources, lie in memory as `turn` has it."""
        key = getattr(turn, "__name__", ""), source
        if key not in self._known:
            found: _Seen = {_RAISES: ()}
            try:
                self._run(found, turn, source, self._results.setdefault(key, {}))
            except Exception as error:  # `view` refuses some layouts
                found[_RAISES] = (type(error).__name__,)
            self._known[key] = found
        return self._known[key]

    def forget(self) -> None:
        """The graph has changed."""
        self._known.clear()
        self._results.clear()

    def _run(self, found: _Seen, turn: _Turn | None, source: str, results: dict[str, _Result]) -> None:
        others = self._reference._results.get((getattr(turn, "__name__", ""), source), {}) if self._reference else {}
        values: dict[fx.Node, Any] = {}
        with self._trace.mode, torch.no_grad(), torch.random.fork_rng([]):
            for node in self._graph.nodes:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                if node.op == "output" or self._is_source(node) and node.op != "placeholder":
                    found[node.name] = tuple(strides(t) for t in _tensors((args, kwargs)))
                if node.op == "output":
                    break
                if self._is_source(node):
                    values[node] = self._given(node, turn if source in ("", node.name) else None)
                    continue
                read = [values[n] for n in node.all_input_nodes]
                for known in (self._traced, others):
                    if node.name in known and _is_alike(known[node.name], node, read):
                        values[node] = known[node.name][-1]
                        break
                else:
                    values[node] = self._computed(node, args, kwargs)
                results[node.name] = node.target, read, values[node]

    def _given(self, node: fx.Node, turn: _Turn | None) -> Any:
        value = node.meta.get("v")
        return value if turn is None else mapped(lambda x: turn(x) if isinstance(x, Tensor) else x, value)

    def _computed(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        if node.op == "get_attr":
            return operator.attrgetter(target)(self._trace.twin)
        if node.op == "call_module":
            return self._trace.twin.get_submodule(target).forward(*args, **kwargs)
        return getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)

    def _is_source(self, node: fx.Node) -> bool:
        """Whether nothing is known of how the values of a node follow from others."""
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


def _traced(node: fx.Node) -> _Result:
    """What the trace has of a node."""
    return node.target, [n.meta.get("v") for n in node.all_input_nodes], node.meta.get("v")


def _is_alike(known: _Result, node: fx.Node, read: list[Any]) -> bool:
    """Whether `known` is the result of a tensor operation on values that lie as those that `node` reads."""
    target, then, result = known
    alike = target == node.target and isinstance(result, Tensor) and len(then) == len(read)
    return alike and all(one is other or _lie_alike(one, other) for one, other in zip(then, read, strict=True))


def _lie_alike(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and one.stride() == other.stride()


# Methods that change how their own tensor lies in memory: the trace knows only how it lay at the end.
_MOVES = frozenset("t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_ resize_ resize_as_ set_".split())
_TENSORS_OWN = frozenset(n for n in dir(Tensor) if not n.startswith("__"))


def _operation(node: fx.Node) -> str | None:
    """The name of the operation of autofuse.ops that a node calls."""
    name = getattr(node.target, "__name__", "")
    return name if node.op == "call_function" and getattr(ops, name, None) is node.target else None


def _may_be_laid_out_otherwise(node: fx.Node) -> bool:
    """Whether a kernel may lay its result out in another way than the plain torch code that fakes go to."""
    name = _operation(node)
    if name is None or name not in OPERATIONS:
        return name is not None
    return OPERATIONS[name].has_choice and not OPERATIONS[name].keeps_layout


_DENSE = frozenset({"linear", "matmul", "bmm", "einsum", "contiguous"})  # whatever the layout of their operands is


def _rests_on_a_choice(node: fx.Node) -> bool:
    """Whether a value lies in memory as a kernel has it that may lay its result out in another way."""
    if _may_be_laid_out_otherwise(node):
        return True
    dense = node.op == "call_module" or getattr(node.target, "__name__", str(node.target)) in _DENSE
    return not dense and any(map(_rests_on_a_choice, node.all_input_nodes))


def _lay_out_results(trace: ForwardTrace, before: _Run, after: _Run) -> None:
    """Put what is returned into the original's layout."""
    (output,) = (n for n in trace.graph.nodes if n.op == "output")
    returned = [n for n in _nodes(output.args) if isinstance(n.meta.get("v"), Tensor)]
    wanted, found = before.seen().get(output.name, ()), after.seen().get(output.name, ())
    if not len(returned) == len(wanted) == len(found):
        return
    for node, was, is_ in {n: (n, was, is_) for n, was, is_ in zip(returned, wanted, found, strict=True)}.values():
        order = _order(was, node.meta["v"])
        if order is not None and (was != is_ or _rests_on_a_choice(node)):
            output.replace_input_with(node, _laid_out(trace, node, order, output))
    after.forget()


def _nodes(args: Any) -> list[fx.Node]:
    found: list[fx.Node] = []

    def note(node: fx.Node) -> fx.Node:
        found.append(node)
        return node

    fx.node.map_arg(args, note)
    return found


def _order(wanted: Strides, like: Tensor) -> list[int] | None:
    """The dimensions as they lie in memory; None where these strides are not those of a dense tensor."""
    if wanted == strides(torch.empty(like.shape, device="meta")):
        return list(range(like.dim()))
    known = [(w if w is not None else 0, d) for d, w in enumerate(wanted)]
    order = sorted(range(like.dim()), key=lambda d: -known[d][0])
    dense = torch.empty([like.shape[d] for d in order], device="meta").permute(_inverse(order))
    return order if strides(dense) == wanted else None


def _inverse(order: list[int]) -> list[int]:
    return [order.index(d) for d in range(len(order))]


def _laid_out(trace: ForwardTrace, node: fx.Node, order: list[int], place: fx.Node) -> fx.Node:
    if order == sorted(order):
        with trace.graph.inserting_before(place):
            made = trace.graph.call_method("contiguous", (node,))
        with trace.mode, torch.no_grad():
            made.meta["v"] = node.meta["v"].contiguous()
        return made
    with trace.graph.inserting_before(place):
        physical = trace.graph.call_method("permute", (node, *order))
        dense = trace.graph.call_method("contiguous", (physical,))
        made = trace.graph.call_method("permute", (dense, *_inverse(order)))
    with trace.mode, torch.no_grad():
        physical.meta["v"] = node.meta["v"].permute(order)
        dense.meta["v"] = physical.meta["v"].contiguous()
        made.meta["v"] = dense.meta["v"].permute(_inverse(order))
    return made


def strides(x: Tensor) -> Strides:
    """The strides that matter: along a dimension of one entry nobody steps."""
    if not x.numel():
        return (None,) * x.dim()
    return tuple(s if n > 1 else None for s, n in zip(x.stride(), x.shape, strict=True))


def _same(one: _Seen, other: _Seen) -> bool:
    """Whether those who see values in both see them lie alike."""
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def _turned_about(x: Tensor) -> Tensor:
    """As `x`, the first dimension innermost."""
    order = list(range(x.dim()))[::-1]
    return x if x.dim() < 2 else _like(x, order)


def _turned_at_the_end(x: Tensor) -> Tensor:
    """As `x`, the last two dimensions changed about."""
    order = list(range(x.dim()))
    return x if x.dim() < 2 else _like(x, [*order[:-2], order[-1], order[-2]])


def _like(x: Tensor, order: list[int]) -> Tensor:
    with torch.no_grad():
        made = torch.empty([x.shape[d] for d in order], dtype=x.dtype, device=x.device).permute(_inverse(order))
    return made.requires_grad_().clone() if x.requires_grad and x.is_floating_point() else made


def _tensors(value: Any) -> Iterator[Tensor]:
    return tensors_in(value, _parts)


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (tuple, list)) else ()


_TURNS = (_turned_about, _turned_at_the_end)
