"""The value a traced forward returns -> the output node of its graph."""

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


def returned(recorder: Recorder, result: Any, dropped: frozenset[Path]) -> fx.Node:
    """End the graph; None stands where a path is `dropped`. Raises Untraceable where a graph cannot return it."""
    for container in _given_twice(result):
        recorder.container_node(container)
    node: fx.Node = recorder.graph.output(_output(recorder, result, dropped, ()))
    return node


def _given_twice(result: Any) -> list[Any]:
    """The containers that lie in a result in two places, where they stay one."""
    found, twice, todo = dict[int, Any](), dict[int, Any](), [result]
    while todo:
        value = todo.pop()
        if foreign.is_foreign(value) or foreign.is_unusable(value):
            continue
        if id(value) in found:
            twice[id(value)] = value
        elif is_mutable(value):
            found[id(value)] = value
            todo += state_of(value).values()
        elif isinstance(value, tuple):
            todo += value
    return list(twice.values())


def _kept_elsewhere(recorder: Recorder, value: Any, dropped: frozenset[Path], path: Path) -> fx.Node | None:
    """The node of a container that somebody has besides the caller, whole; None where nobody does."""
    known = recorder.tracked.get(id(value)) or recorder.tuples.get(id(value))
    if known is None or foreign.is_foreign(value):
        return None
    tail = tail_of(dropped)
    if tail is not None and any(p[: len(path)] == path and p[-1] == tail for p in dropped):
        recorder.refuse(because(forwards.RETURNS_OBJECT, kind=f"{type(value).__name__} that somebody else has too"))
    node: fx.Node = recorder.stored_node(value)
    return node


def _output(recorder: Recorder, value: Any, dropped: frozenset[Path], path: Path) -> Any:
    if path in dropped:
        return None
    if (tail := tail_of(dropped)) is not None and (*path, tail) in dropped:
        return _before_dropout(recorder, recorder.argument(value), tail.dropout)
    if isinstance(value, (Tensor, Length, *SCALARS)) or foreign.is_foreign(value) or foreign.is_unusable(value):
        return recorder.argument(value)
    kept = _kept_elsewhere(recorder, value, dropped, path)
    if kept is not None:
        return kept
    if type(value) in (tuple, list):
        return type(value)(_output(recorder, v, dropped, (*path, i)) for i, v in enumerate(value))
    if type(value) is dict:
        return {k: _output(recorder, v, dropped, (*path, k)) for k, v in value.items()}
    if is_record(value):
        fields = [_output(recorder, v, dropped, (*path, k)) for k, v in vars(value).items()]
        return recorder.graph.call_function(record_maker(type(value), *vars(value)), tuple(fields))
    leaves, spec = pytree.tree_flatten(value)
    if len(leaves) == 1 and leaves[0] is value:
        recorder.refuse(because(forwards.RETURNS_OBJECT, kind=type(value).__name__))
    return recorder.graph.call_function(
        _rebuilder(spec), tuple(_output(recorder, x, dropped, (*path, ...)) for x in leaves)
    )


def _before_dropout(recorder: Recorder, node: Any, name: str) -> fx.Node:
    """What the dropout called `name` is given, where `node` is its result and read by nobody else."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or str(node.target) != name or node.users:
        recorder.refuse(because(forwards.DROPOUT_NOT_LAST))
    given = node.all_input_nodes[0]
    recorder.graph.erase_node(node)
    return given


_REBUILDERS: list[tuple[pytree.TreeSpec, Callable[..., Any]]] = []


def _rebuilder(spec: pytree.TreeSpec) -> Callable[..., Any]:
    """A function of the leaves that gives the whole; one for each structure, so that equal graphs stay equal."""
    for known, function in _REBUILDERS:
        if known == spec:
            return function

    def rebuilt(*leaves: Any) -> Any:
        return pytree.tree_unflatten(list(leaves), spec)

    rebuilt.__name__ = rebuilt.__qualname__ = f"rebuilt_{len(_REBUILDERS)}"
    _REBUILDERS.append((spec, rebuilt))
    return rebuilt
