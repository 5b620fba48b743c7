"""Turns the value that a traced forward returns into the output node of its graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx

from autofuse.fx.trace import foreign_objects as foreign
from autofuse.fx.trace.contents import is_mutable, state_of
from autofuse.fx.trace.paths import Path, is_record, record_maker, tail_of
from autofuse.fx.trace.symbolic_sizes import Length
from autofuse.fx.trace.twin import SCALARS
from autofuse.reasons import forwards
from autofuse.reasons.reason import because
from autofuse.torch_private import pytree

if TYPE_CHECKING:
    from autofuse.fx.trace.recorder import Recorder


def add_output(recorder: Recorder, result: Any, dropped: frozenset[Path]) -> fx.Node:
    """Adds the output node. The output has None at each path in `dropped`.

    Raises:
        Untraceable: A graph cannot return this value.
    """
    # Their nodes come first, so that both places in the output refer to one node.
    for container in _shared_containers(result):
        recorder.container_node(container)
    node: fx.Node = recorder.graph.output(_output_value(recorder, result, dropped, ()))
    return node


def _shared_containers(result: Any) -> list[Any]:
    """Returns the containers that occur twice in a result. They must stay one object."""
    found, shared, todo = dict[int, Any](), dict[int, Any](), [result]
    while todo:
        value = todo.pop()
        if foreign.is_foreign(value) or foreign.is_unusable(value):
            continue
        if id(value) in found:
            shared[id(value)] = value
        elif is_mutable(value):
            found[id(value)] = value
            todo += state_of(value).values()
        elif isinstance(value, tuple):
            todo += value
    return list(shared.values())


def _node_if_held_elsewhere(recorder: Recorder, value: Any, dropped: frozenset[Path], path: Path) -> fx.Node | None:
    """Returns the node of a container that something besides the caller holds, or None if nothing does."""
    known = recorder.tracked.get(id(value)) or recorder.tuples.get(id(value))
    if known is None or foreign.is_foreign(value):
        return None
    tail = tail_of(dropped)
    # The other holder would see the value before the dropout.
    if tail is not None and any(p[: len(path)] == path and p[-1] == tail for p in dropped):
        recorder.refuse(because(forwards.RETURNS_OBJECT, kind=f"{type(value).__name__} that is also held elsewhere"))
    node: fx.Node = recorder.stored_node(value)
    return node


def _output_value(recorder: Recorder, value: Any, dropped: frozenset[Path], path: Path) -> Any:
    if path in dropped:
        return None
    if (tail := tail_of(dropped)) is not None and (*path, tail) in dropped:
        return _dropout_input(recorder, recorder.argument(value), tail.dropout)
    if isinstance(value, (Tensor, Length, *SCALARS)) or foreign.is_foreign(value) or foreign.is_unusable(value):
        return recorder.argument(value)
    kept = _node_if_held_elsewhere(recorder, value, dropped, path)
    if kept is not None:
        return kept
    if type(value) in (tuple, list):
        return type(value)(_output_value(recorder, v, dropped, (*path, i)) for i, v in enumerate(value))
    if type(value) is dict:
        return {k: _output_value(recorder, v, dropped, (*path, k)) for k, v in value.items()}
    if is_record(value):
        fields = [_output_value(recorder, v, dropped, (*path, k)) for k, v in vars(value).items()]
        return recorder.graph.call_function(record_maker(type(value), *vars(value)), tuple(fields))
    leaves, spec = pytree.tree_flatten(value)
    if len(leaves) == 1 and leaves[0] is value:  # pytree does not know this class
        recorder.refuse(because(forwards.RETURNS_OBJECT, kind=type(value).__name__))
    return recorder.graph.call_function(
        _rebuilder(spec), tuple(_output_value(recorder, x, dropped, (*path, ...)) for x in leaves)
    )


def _dropout_input(recorder: Recorder, node: Any, name: str) -> fx.Node:
    """Returns the input of the dropout called `name`, where `node` is its result and nothing else reads it."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or str(node.target) != name or node.users:
        recorder.refuse(because(forwards.DROPOUT_NOT_LAST))
    input_node = node.all_input_nodes[0]
    recorder.graph.erase_node(node)
    return input_node


_REBUILDERS: list[tuple[pytree.TreeSpec, Callable[..., Any]]] = []


def _rebuilder(spec: pytree.TreeSpec) -> Callable[..., Any]:
    """Returns a function that builds the value from its leaves.

    There is one function for each structure, so that equal graphs stay equal.
    """
    for known, function in _REBUILDERS:
        if known == spec:
            return function

    def rebuilt(*leaves: Any) -> Any:
        return pytree.tree_unflatten(list(leaves), spec)

    rebuilt.__name__ = rebuilt.__qualname__ = f"rebuilt_{len(_REBUILDERS)}"
    _REBUILDERS.append((spec, rebuilt))
    return rebuilt
