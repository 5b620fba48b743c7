"""Holds the values of a trace: its tensors, lengths and foreign objects, and the fx node that computes each.

This file knows how a result is taken apart and how an argument is put into a graph. It knows neither torch's functions
(recorder.py) nor the module (attribute_reads.py).
"""

from __future__ import annotations

import copy
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn

from autofuse.fx.trace import foreign_objects as foreign
from autofuse.fx.trace.ambient_state import current_ambient_state
from autofuse.fx.trace.child_numbers import Number
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.open_integers import OpenInteger
from autofuse.fx.trace.paths import Path, is_record, record_maker
from autofuse.fx.trace.size_origins import Sizes
from autofuse.fx.trace.source_lines import SourceLine, user_place
from autofuse.fx.trace.symbolic_sizes import Length, Size
from autofuse.fx.trace.twin import SCALARS, Twins
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because
from autofuse.torch_private.nested import tensors_in


class Untraceable(Exception):
    """Raised if a graph cannot represent a forward.

    Attributes:
        reason: Why.
        place: The line of the user's code.
        passing: Whether the next call may succeed, for example because a cache is filled then.
    """

    def __init__(self, reason: Reason, place: SourceLine | None = None, passing: bool = False) -> None:
        super().__init__(str(reason))
        self.reason, self.place = reason, place
        self.passing = passing


@dataclass
class HeldTensor:
    """A tensor of the trace.

    Attributes:
        tensor: The tensor. Holding it keeps its id unique.
        make: Makes its node when it is first needed.
        sizes: The origins of its sizes.
        text: The text with which a guard reads it, if it is an argument.
        node: The node, once it is made.
    """

    tensor: Tensor
    make: Callable[[], fx.Node]
    sizes: Sizes
    text: str | None = None
    node: fx.Node | None = None


class Values:
    """The tensors and nodes that one run of one forward has computed so far."""

    def __init__(self, root: nn.Module, world: Twins) -> None:
        super().__init__()
        self.root, self.world = root, world
        self.graph, self.guards = fx.Graph(), Guards()
        self.paused = False
        self.runs = True  # whether forward still runs; afterwards the innermost line is that of autofuse's caller
        self.definition: SourceLine | None = None  # where the forward is defined
        self.exact = False  # whether the trace holds only for the example's sizes
        self.held: dict[int, HeldTensor] = {}
        self.alias_sources: dict[int, Tensor] = {}  # id of an alias of an operand -> the operand
        self.items: dict[fx.Node, dict[Path, Item]] = {}  # call of a child -> the leaves of its result
        self.around = current_ambient_state()
        self.refused: Untraceable | None = None  # the first error; the user's code may have caught it

    def parameter(self, x: Tensor) -> HeldTensor | None:
        """Records a parameter or a buffer of the module. Returns None if `x` is neither."""
        raise NotImplementedError

    def module(self, x: nn.Module) -> fx.Node:
        """Returns the node of a module that is passed to an operation or to a child."""
        raise NotImplementedError

    def known_result(self, result: Any) -> Any:
        """Returns forward's own object for a result that forward itself passed in, or None for any other result."""
        raise NotImplementedError

    def stand_in(self, node: Any, real: Any, text: str | None) -> Any:
        """Returns a stand-in for an object that is neither a tensor nor a plain value."""
        raise NotImplementedError

    def keep_result(self, node: fx.Node, result: Any, before: list[tuple[Tensor, int]], sizes: list[Sizes]) -> Any:
        """Records which tensors `node` computes, and which it overwrote.

        Args:
            node: The node of the call.
            result: What the call returned.
            before: The operands, with their versions before the call.
            sizes: The origins of the sizes of each tensor in the result.
        """
        with self.pause_recording():
            return self._keep_result(node, result, before, sizes)

    def _keep_result(self, node: fx.Node, result: Any, before: list[tuple[Tensor, int]], sizes: list[Sizes]) -> Any:
        overwritten_tensors = [t for t, version in before if t._version != version]
        node.meta["writes"] = [self.node_of(t) for t in overwritten_tensors]
        inputs = {id(t) for t, _ in before}
        written = {id(t) for t in overwritten_tensors}

        leaves = self.items.setdefault(node, {}) if node.op == "call_module" else {}

        def keep(x: Tensor, make: Callable[[], fx.Node], known: Sizes) -> Tensor:
            if isinstance(make, Item):
                leaves[make.path] = make
            if id(x) in inputs and id(x) not in written:
                named = torch.ops.aten.alias.default(x)  # `x.float()` may return x itself: an alias has its own id
                self.alias_sources[id(named)], x = x, named
            self.held[id(x)] = HeldTensor(x, make, known)
            return x

        if isinstance(result, Tensor):
            result = node.meta["v"] = keep(result, lambda: node, sizes[0])
            return result
        return self.adopt_result(result, node, iter(sizes), keep)

    def adopt_result(
        self, result: Any, node: fx.Node | Item, sizes: Iterator[Sizes], keep: Callable[..., Tensor] | None = None
    ) -> Any:
        """Returns forward's view of a result. Each tensor, length or foreign object is read from `node` on use."""
        known = self.known_result(result)
        if known is not None:
            return known
        if isinstance(result, Tensor):
            return (keep or self.hold)(
                result, node if isinstance(node, Item) else lambda: node, next(sizes, (None,) * result.dim())
            )
        if isinstance(node, Item) and type(result) in (int, float):
            node.example = result
        if type(result) is int:
            return Length(self, node, result, None)
        if type(result) is float:
            return Number.of(self, node, result)
        if isinstance(result, (bool, float, complex)):
            self.refuse(because(forwards.CHILDS_NUMBER, how="uses"))
        if isinstance(result, dict):
            new = {k: self.adopt_result(v, Item(self, node, k), sizes, keep) for k, v in result.items()}
            return _dict_like(result, new)
        if is_record(result):
            fields = {
                k: self.adopt_result(v, Item(self, node, k, getattr), sizes, keep) for k, v in vars(result).items()
            }
            new = copy.copy(result)
            vars(new).update(fields)
            return new
        if isinstance(result, (tuple, list)):
            items = [self.adopt_result(v, Item(self, node, i), sizes, keep) for i, v in enumerate(result)]
            return (
                items if type(result) is list else tuple(items) if type(result) is tuple else _tuple_like(result, items)
            )
        if foreign.needs_stand_in(result):
            return self.stand_in(node, result, None)
        return result

    def hold(self, x: Tensor, make: Callable[[], fx.Node], sizes: Sizes) -> Tensor:
        """Records a tensor, the function that makes its node, and its sizes. Returns the tensor or an alias of it."""
        if id(x) in self.held:  # a child returned the same tensor before
            x = torch.ops.aten.alias.default(x)
        self.held[id(x)] = HeldTensor(x, make, sizes)
        return x

    def annotate(self, node: fx.Node, value: Any) -> fx.Node:
        """Stores in a node's meta its value in the example and the line of the user's code."""
        node.meta["v"], node.meta["place"] = value, user_place()
        return node

    def versions(self, values: Any) -> list[tuple[Tensor, int]]:
        """Returns the tensors in some values with their version counters, which writes increase."""
        with self.pause_recording():
            return [(t, t._version) for t in tensors(self.concrete(values))]

    # Arguments of nodes.

    def node_of(self, x: Tensor) -> fx.Node:
        """Returns the node that computes a tensor."""
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
        """Returns the origins of a tensor's sizes."""
        self.node_of(x)
        return self.held[id(x)].sizes

    def argument(self, x: Any) -> Any:
        """Returns the node, or the constant, that represents a value passed to an operation."""
        if isinstance(x, Tensor):
            return self.node_of(x)
        if isinstance(x, Length):
            return resolved_node(x.origin)
        if type(x) is Number:
            number = resolved_node(x.origin)
            number.meta.setdefault("v", x.value)
            return number
        if type(x) is OpenInteger:
            return x.used()
        if foreign.is_foreign(x):
            return resolved_node(foreign.parts(x)[0])
        if foreign.is_unusable(x):
            foreign.refuse_use(x)
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
        """Returns the value of an argument in the example. Lengths become numbers, and stand-ins their objects."""
        if isinstance(x, Length) or type(x) is Number:
            return x.value
        if type(x) is OpenInteger:
            return x.used()
        if foreign.is_foreign(x):
            return foreign.parts(x)[1]
        if isinstance(x, slice):
            return slice(*map(self.concrete, (x.start, x.stop, x.step)))
        if is_record(x):
            new = copy.copy(x)
            vars(new).update({k: self.concrete(v) for k, v in vars(x).items()})
            return new
        if type(x) in (list, tuple, dict) or isinstance(x, torch.Size):
            return (
                type(x)(map(self.concrete, x))
                if not isinstance(x, dict)
                else {k: self.concrete(v) for k, v in x.items()}
            )
        return x

    # Calls from lengths.

    def derive_length(
        self, function: Callable[..., Any], operands: tuple[int | Length, ...], value: int, size: Size
    ) -> Length:
        """Returns a length that `function` computes from others."""
        node = self.graph.call_function(function, tuple(self.argument(o) for o in operands))
        return Length(self, self.annotate(node, value), value, size)

    def assume(self, test: str | None, what: str) -> None:
        """Assumes that `test` holds. If it is None, the trace holds only for the example's sizes."""
        if test is None:
            self.exact = True
        else:
            self.guards.add(test)

    @abstractmethod
    def fix_own_sizes(self, origin: Any) -> None:
        """Guards the sizes of the module's own tensors from which the size at `origin` was computed."""

    # Refusals.

    def check_surroundings(self) -> None:
        """Refuses an operation if the ambient state differs from forward's own, for example under no_grad."""
        if current_ambient_state() != self.around:
            self.refuse(because(forwards.UNDER_CONTEXT))

    def is_under_no_grad(self) -> bool:
        """Returns whether forward has disabled gradients here. Refuses any other difference of the ambient state."""
        now = current_ambient_state()
        if now == self.around:
            return False
        if now.grad or now._replace(grad=True) != self.around:
            self.refuse(because(forwards.UNDER_CONTEXT))
        return True

    def may_have_gradient(self, operands: Any) -> bool:
        """Returns whether an operation has a gradient. A mask made from sizes and constants has none."""
        return any((t.is_floating_point() or t.is_complex()) and not self.is_constant(t) for t in tensors(operands))

    def is_constant(self, x: Tensor) -> bool:
        """Returns whether a tensor depends only on sizes and constants, as a cached mask does."""
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

    def refuse_use(self, text: str, kind: str) -> NoReturn:
        """Refuses the use of an argument that must not be used while it is traced."""
        self.refuse(because(forwards.USES_UNSEEN, name=text, kind=kind))

    def refuse(self, reason: Reason, passing: bool = False, place: SourceLine | None = None) -> NoReturn:
        """Raises Untraceable, and remembers it, because the user's code may catch it."""
        error = Untraceable(reason, place or (user_place() if self.runs else self.definition), passing)
        if reason.code is not forwards.CHILDS_NUMBER:  # torch itself queries numbers, and handles the error
            self.refused = self.refused or error
        raise error

    @contextmanager
    def pause_recording(self) -> Iterator[None]:
        """Runs a block without recording it."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before


class Item:
    """An element or a field of another node's result. Its node is made when it is first used."""

    def __init__(self, recorder: Values, owner: Any, key: Any, get: Callable[..., Any] = operator.getitem) -> None:
        self.recorder, self.owner, self.key, self.get = recorder, owner, key, get
        self.node: fx.Node | None = None
        self.example: float | None = None  # the number that it is
        self.path: Path = (*(owner.path if isinstance(owner, Item) else ()), key)

    def __call__(self) -> fx.Node:
        return self.resolve()

    def resolve(self) -> fx.Node:
        """Returns the node, which is made at the first call."""
        if self.node is None:
            owner = resolved_node(self.owner)
            node = self.recorder.graph.call_function(self.get, (owner, self.key))
            node.meta["place"] = owner.meta.get("place")
            if self.example is not None:
                node.meta["v"] = self.example
            self.node = node
        return self.node


def resolved_node(node: Any) -> fx.Node:
    """Returns a node, and makes it first if necessary."""
    return node.resolve() if isinstance(node, Item) else node() if not isinstance(node, fx.Node) else node


def tensors(value: Any) -> Iterator[Tensor]:
    """Yields the tensors in a value, in order."""
    return tensors_in(value, _parts)


def _parts(value: Any) -> Iterable[Any]:
    """Returns the parts of a value of a kind that the trace takes apart and rebuilds (Values.adopt_result)."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (tuple, list)) else vars(value).values() if is_record(value) else ()


def holds_tensors(value: Any) -> bool:
    """Returns whether a graph can hold a result: tensors, or an empty result."""
    return value is None or next(tensors(value), None) is not None or value in ((), [])


def _dict_like(like: Any, items: dict[Any, Any]) -> Any:
    """Returns a dict of the class of `like` with these items."""
    if type(like) is dict:
        return items
    new = copy.copy(like)
    for k, v in items.items():
        new[k] = v
    return new


def _tuple_like(like: Any, items: list[Any]) -> Any:
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
