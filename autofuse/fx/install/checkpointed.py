"""Puts the nodes between two marks of a checkpoint into a function, which the rewritten forward checkpoints.

The function reads the module's parameters itself, as the original does: it runs again in the backward pass, when a
wrapper such as FSDP may have put other tensors there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from autofuse.fx.install.generated_source import execute, python_source
from autofuse.fx.install.guard_code import identity
from autofuse.fx.install.guarded_reads import guard_presence
from autofuse.fx.trace import checkpoints
from autofuse.fx.trace.contents import STORES
from autofuse.fx.trace.tracer import ForwardTrace

_KNOWN: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()


def group_checkpointed(trace: ForwardTrace) -> bool:
    """Replace each pair of marks and the nodes between by one call of a checkpointed function.

    Args:
        trace: The rewritten trace, which is changed.

    Returns:
        Whether there is a checkpoint. Then the graph has one more input: the module.
    """
    graph = trace.graph
    begins = [n for n in graph.nodes if n.target is checkpoints.begin]
    if not begins:
        return False
    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
        module = graph.placeholder(f"in{len(trace.inputs)}")
    reads_again = not any(n.target in STORES for n in graph.nodes)  # no attribute has another value by then
    for mark in begins:
        for read in _group(graph, mark, module, reads_again):
            guard_presence(trace, str(read.target))
    return True


def _group(graph: fx.Graph, mark: fx.Node, module: fx.Node, reads_again: bool) -> list[fx.Node]:
    """Replace one pair of marks. Returns the reads of attributes that are now inside of the function."""
    last = mark.next
    while last.target is not checkpoints.end:
        last = last.next
    inside = _nodes_between(mark, last)
    outer = dict.fromkeys(n for node in inside for n in node.all_input_nodes if n not in inside)
    own = [n for n in outer if n.op == "get_attr" and reads_again]
    given = [n for n in outer if n not in own]
    results = [n for n in inside if any(user not in inside for user in n.users)]
    function = _function(_graph_of(inside, own, given, results), dict(mark.kwargs))
    with graph.inserting_before(mark):
        call = graph.call_function(function, (module, *given))
    with graph.inserting_before(last):
        for at, node in enumerate(results):
            item = graph.call_function(operator.getitem, (call, at))
            item.meta = dict(node.meta)
            node.replace_all_uses_with(item, delete_user_cb=lambda user: user not in inside)
    for node in (last, *reversed(inside), mark):
        graph.erase_node(node)
    return own


def _nodes_between(mark: fx.Node, last: fx.Node) -> dict[fx.Node, None]:
    """The nodes between two marks, except reads of the module's attributes."""
    found: dict[fx.Node, None] = {}
    node = mark.next
    while node is not last:
        if node.op not in ("placeholder", "get_attr"):
            found[node] = None
        node = node.next
    return found


def _graph_of(
    inside: dict[fx.Node, None], own: list[fx.Node], given: list[fx.Node], results: list[fx.Node]
) -> fx.Graph:
    """A graph of these nodes. It reads the attributes `own` itself, and returns a tuple of `results`."""
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for at, node in enumerate(given):
        copies[node] = graph.placeholder(f"in{at}")
    for node in own:
        copies[node] = graph.get_attr(str(node.target))
    for node in inside:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[n] for n in results))
    return graph


def _function(graph: fx.Graph, options: dict[str, Any]) -> Callable[..., Any]:
    """A function of the module and the inputs of a graph that checkpoints it. Equal graphs have one function."""
    source, names = python_source(graph)
    key = source, tuple((n, identity(v)) for n, v in names.items()), tuple(options.items())
    found = _KNOWN.get(key)
    if found is None:
        namespace = dict(names)
        execute(source, namespace)
        found = _KNOWN[key] = _checkpointed(namespace["forward"], options)
    return found


def _checkpointed(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    def checkpointed(module: nn.Module, *inputs: Any) -> Any:
        return checkpoint(partial(function, module), *inputs, use_reentrant=False, **options)

    return checkpointed
