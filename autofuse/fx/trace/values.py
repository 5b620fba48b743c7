"""The values of a trace: which tensors, lengths and foreign objects there are, and which fx node computes each.

Knows how a result is taken apart and how an argument is put into a graph. Knows neither torch's functions
(recorder.py) nor the module (attribute_reads.py).
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn

from autofuse.fx.trace import foreign_objects as foreign
from autofuse.fx.trace.ambient_state import AmbientState, ambient
from autofuse.fx.trace.child_numbers import Number
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.paths import Path, is_record, record_maker
from autofuse.fx.trace.size_sources import Sizes
from autofuse.fx.trace.source_lines import SourceLine, user_place
from autofuse.fx.trace.symbolic_sizes import Length, Size
from autofuse.fx.trace.twin import SCALARS, Twins
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because
from autofuse.torch_private.nested import tensors_in


class Untraceable(Exception):
    """Why a forward cannot be held by a graph, and where in the user's code."""

    def __init__(self, reason: Reason, place: SourceLine | None = None, passing: bool = False) -> None:
        super().__init__(str(reason))
        self.reason, self.place = reason, place
        self.passing = passing  # whether it may be over at the next call: a cache that was filled


@dataclass
class Held:
    """A tensor of the trace: kept alive, so that its id stays its own; `node` is made when first needed."""

    tensor: Tensor
    make: Callable[[], fx.Node]
    sizes: Sizes
    text: str | None = None  # how a guard reaches it, if it is an argument
    node: fx.Node | None = None


class Values:
    """What one run of one forward has computed so far."""

    def __init__(self, root: nn.Module, world: Twins) -> None:
        super().__init__()
        self.root, self.world = root, world
        self.graph, self.guards = fx.Graph(), Guards()
        self.paused = False
        self.runs = True  # whether forward still does: afterwards the innermost line is that of who calls autofuse
        self.definition: SourceLine | None = None  # of the forward
        self.exact = False  # whether some answer holds for the example's sizes only
        self.held: dict[int, Held] = {}
        self.itself: dict[int, Tensor] = {}  # id of a result that is an operand itself -> that operand
        self.items: dict[fx.Node, dict[Path, Item]] = {}  # what each call returned, leaf by leaf
        self.around = ambient()
        self.refused: Untraceable | None = None  # which the user's code may have caught

    def parameter(self, x: Tensor) -> Held | None:
        """Hold a parameter or a buffer of the module; None if `x` is neither."""
        raise NotImplementedError

    def module(self, x: nn.Module) -> fx.Node:
        """The node of a module that is passed on to an operation or to a child."""
        raise NotImplementedError

    def known_result(self, result: Any) -> Any:
        """What forward has in hand of a result that it has handed over itself; None for any other."""
        raise NotImplementedError

    def stand_in(self, node: Any, real: Any, text: str | None) -> Any:
        """What stands for an object that is no tensor and no plain value."""
        raise NotImplementedError

    def kept(self, node: fx.Node, result: Any, before: list[tuple[Tensor, int]], sizes: list[Sizes]) -> Any:
        """Remember which tensors `node` computes, and which it overwrote."""
        with self.silence():
            return self._remembered(node, result, before, sizes)

    def _remembered(self, node: fx.Node, result: Any, before: list[tuple[Tensor, int]], sizes: list[Sizes]) -> Any:
        overwritten = [t for t, version in before if t._version != version]
        node.meta["writes"] = [self.node_of(t) for t in overwritten]
        inputs = {id(t) for t, _ in before}
        written = {id(t) for t in overwritten}

        leaves = self.items.setdefault(node, {}) if node.op == "call_module" else {}

        def keep(x: Tensor, make: Callable[[], fx.Node], known: Sizes) -> Tensor:
            if isinstance(make, Item):
                leaves[make.path] = make
            if id(x) in inputs and id(x) not in written:
                named = torch.ops.aten.alias.default(x)  # `x.float()` may be x itself: give it a name of its own
                self.itself[id(named)], x = x, named
            self.held[id(x)] = Held(x, make, known)
            return x

        if isinstance(result, Tensor):
            result = node.meta["v"] = keep(result, lambda: node, sizes[0])
            return result
        return self.adopted(result, node, iter(sizes), keep)

    def adopted(
        self, result: Any, node: fx.Node | Item, sizes: Iterator[Sizes], keep: Callable[..., Tensor] | None = None
    ) -> Any:
        """A result that holds tensors, lengths or foreign objects, each read from `node` when it is used."""
        known = self.known_result(result)
        if known is not None:
            return known
        if isinstance(result, Tensor):
            return (keep or self.hold)(
                result, node if isinstance(node, Item) else lambda: node, next(sizes, (None,) * result.dim())
            )
        if type(result) is int:
            return Length(self, node, result, None)
        if type(result) is float:
            return Number.of(self, node, result)
        if isinstance(result, (bool, float, complex)):
            self.refuse(because(forwards.CHILDS_NUMBER, how="uses"))
        if isinstance(result, dict):
            made = {k: self.adopted(v, Item(self, node, k), sizes, keep) for k, v in result.items()}
            return _refilled(result, made)
        if is_record(result):
            fields = {k: self.adopted(v, Item(self, node, k, getattr), sizes, keep) for k, v in vars(result).items()}
            made = copy.copy(result)
            vars(made).update(fields)
            return made
        if isinstance(result, (tuple, list)):
            items = [self.adopted(v, Item(self, node, i), sizes, keep) for i, v in enumerate(result)]
            return (
                items
                if type(result) is list
                else tuple(items)
                if type(result) is tuple
                else _refilled_tuple(result, items)
            )
        if foreign.needs_stand_in(result):
            return self.stand_in(node, result, None)
        return result

    def hold(self, x: Tensor, make: Callable[[], fx.Node], sizes: Sizes) -> Tensor:
        if id(x) in self.held:  # a child that hands out a tensor it keeps
            x = torch.ops.aten.alias.default(x)
        self.held[id(x)] = Held(x, make, sizes)
        return x

    def noted(self, node: fx.Node, value: Any) -> fx.Node:
        node.meta["v"], node.meta["place"] = value, user_place()
        return node

    def versions(self, values: Any) -> list[tuple[Tensor, int]]:
        with self.silence():
            return [(t, t._version) for t in tensors(self.concrete(values))]

    # Arguments of nodes.

    def node_of(self, x: Tensor) -> fx.Node:
        """The node that computes a tensor."""
        held = self.held.get(id(x))
        if held is None:
            held = self.parameter(x)
        if held is None:
            self.refuse(because(forwards.LOOSE_TENSOR))
        if held.node is None:
            held.node = resolved_node(held.make())
            held.node.meta.setdefault("v", x)
        return held.node

    def sizes_of(self, x: Tensor) -> Sizes:
        self.node_of(x)
        return self.held[id(x)].sizes

    def argument(self, x: Any) -> Any:
        """What stands in the graph for a value passed to an operation."""
        if isinstance(x, Tensor):
            return self.node_of(x)
        if isinstance(x, Length):
            return resolved_node(x.origin)
        if type(x) is Number:
            number = resolved_node(x.origin)
            number.meta.setdefault("v", x.value)
            return number
        if foreign.is_foreign(x):
            return resolved_node(foreign.parts(x)[0])
        if foreign.is_untouchable(x):
            foreign.use(x)
        if isinstance(x, nn.Module):
            return self.module(x)
        if isinstance(x, slice):
            return slice(*map(self.argument, (x.start, x.stop, x.step)))
        if isinstance(x, dict):
            return {k: self.argument(v) for k, v in x.items()}
        if is_record(x):
            return self.graph.call_function(
                record_maker(type(x), *vars(x)), tuple(map(self.argument, vars(x).values()))
            )
        if isinstance(x, (list, tuple)):
            items = [self.argument(v) for v in x]
            return items if isinstance(x, list) else type(x)(*items) if hasattr(x, "_fields") else tuple(items)
        if type(x).__module__ == "numpy" and hasattr(x, "item") and not getattr(x, "ndim", 0):
            return x.item()
        if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)) or not isinstance(x, SCALARS) and x is not ...:
            self.refuse(because(forwards.PASSES_OBJECT, kind=type(x).__name__))
        return x

    def concrete(self, x: Any) -> Any:
        """The example value of an argument: lengths are numbers, stand-ins are what they stand for."""
        if isinstance(x, Length) or type(x) is Number:
            return x.value
        if foreign.is_foreign(x):
            return foreign.parts(x)[1]
        if isinstance(x, slice):
            return slice(*map(self.concrete, (x.start, x.stop, x.step)))
        if is_record(x):
            made = copy.copy(x)
            vars(made).update({k: self.concrete(v) for k, v in vars(x).items()})
            return made
        if type(x) in (list, tuple, dict) or isinstance(x, torch.Size):
            return (
                type(x)(map(self.concrete, x))
                if not isinstance(x, dict)
                else {k: self.concrete(v) for k, v in x.items()}
            )
        return x

    # What lengths report.

    def derive_length(
        self, function: Callable[..., Any], operands: tuple[int | Length, ...], value: int, size: Size
    ) -> Length:
        node = self.graph.call_function(function, tuple(self.argument(o) for o in operands))
        return Length(self, self.noted(node, value), value, size)

    def assume(self, test: str | None, what: str) -> None:
        """The trace holds where `test` does; where it cannot be told, for the example's sizes only."""
        if test is None:
            self.exact = True
        else:
            self.guards.add(test)

    # The rules of the house.

    def check_surroundings(self, operands: Any = None) -> None:
        now = ambient()
        if now != self.around and not (operands is not None and self._has_no_gradient(now, operands)):
            self.refuse(because(forwards.UNDER_CONTEXT))

    def _has_no_gradient(self, now: AmbientState, operands: Any) -> bool:
        """Whether `no_grad` around an operation says nothing: a mask that is made from sizes and constants."""
        if now._replace(grad=self.around.grad) != self.around:
            return False
        return all(not t.is_floating_point() and not t.is_complex() or self.is_constant(t) for t in tensors(operands))

    def is_constant(self, x: Tensor) -> bool:
        """Whether a tensor follows from sizes and constants alone, as a cached mask does."""
        held = self.held.get(id(x))
        todo = [held.node] if held is not None and held.node is not None else []
        known, seen = bool(todo), set[fx.Node]()
        while todo:
            node = todo.pop()
            if node in seen or node.op == "call_method" and node.target == "size":
                continue
            if node.op in ("placeholder", "get_attr", "call_module") or node.meta.get("writes"):
                return False
            seen.add(node)
            todo += node.all_input_nodes
        return known

    def used(self, text: str, kind: str) -> NoReturn:
        """Forward uses an argument that must not be used while it is read."""
        self.refuse(because(forwards.USES_UNSEEN, name=text, kind=kind))

    def refuse(self, reason: Reason, passing: bool = False, place: SourceLine | None = None) -> NoReturn:
        error = Untraceable(reason, place or (user_place() if self.runs else self.definition), passing)
        if reason.code is not forwards.CHILDS_NUMBER:  # torch asks numbers what they are, and goes on without an answer
            self.refused = self.refused or error
        raise error

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Run code without writing it down."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before


class Item:
    """A node that is made when it is first asked for: an element, or a field, of another node's result."""

    def __init__(self, recorder: Values, owner: Any, key: Any, get: Callable[..., Any] = operator.getitem) -> None:
        self.recorder, self.owner, self.key, self.get = recorder, owner, key, get
        self.node: fx.Node | None = None
        self.path: Path = (*(owner.path if isinstance(owner, Item) else ()), key)

    def __call__(self) -> fx.Node:
        return self.resolved()

    def resolved(self) -> fx.Node:
        if self.node is None:
            owner = resolved_node(self.owner)
            node = self.recorder.graph.call_function(self.get, (owner, self.key))
            node.meta["place"] = owner.meta.get("place")
            self.node = node
        return self.node


def resolved_node(node: Any) -> fx.Node:
    """A node that may have to be made first."""
    return node.resolved() if isinstance(node, Item) else node() if not isinstance(node, fx.Node) else node


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, in order."""
    return tensors_in(value, _parts)


def _parts(value: Any) -> Iterable[Any]:
    """What lies in a value of a kind that the trace takes apart and puts together again (Values.adopted)."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (tuple, list)) else vars(value).values() if is_record(value) else ()


def holds_tensors(value: Any) -> bool:
    """Whether a graph can hold a result: tensors, or nothing."""
    return value is None or next(tensors(value), None) is not None or value in ((), [])


def _refilled(like: Any, items: dict[Any, Any]) -> Any:
    """A dict of the same class as `like`."""
    if type(like) is dict:
        return items
    made = copy.copy(like)
    for k, v in items.items():
        made[k] = v
    return made


def _refilled_tuple(like: Any, items: list[Any]) -> Any:
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
