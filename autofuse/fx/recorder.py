"""Writes down what a forward does to tensors, as an fx graph, while it runs once on a twin.

Tensors are fake ones, known by identity, so `isinstance`, in-place operations and views behave as always; sizes are
Lengths; children are called but not entered. Torch is not patched: a TorchFunctionMode sees every function. Knows what
a forward may not do; guards collect what was taken for granted.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from autofuse.fx import foreign, operations
from autofuse.fx.ambient import ambient
from autofuse.fx.guards import Guards
from autofuse.fx.lengths import Length, Size
from autofuse.fx.places import Place, user_place
from autofuse.fx.records import Path, is_record, record_maker
from autofuse.fx.sizes import Sizes, result_sizes
from autofuse.fx.twin import SCALARS, World
from autofuse.fx.watching import Watching


class Untraceable(Exception):
    """Why a forward cannot be held by a graph: a sentence, and where in the user's code."""

    def __init__(self, why: str, place: Place | None = None) -> None:
        super().__init__(why)
        self.why, self.place = why, place


@dataclass
class Held:
    """A tensor of the trace: kept alive, so that its id stays its own; `node` is made when first needed."""

    tensor: Tensor
    make: Callable[[], fx.Node]
    sizes: Sizes
    text: str | None = None  # how a guard reaches it, if it is an argument
    node: fx.Node | None = None


class Recorder(Watching, TorchFunctionMode):
    """One run of one module's forward."""

    def __init__(self, root: nn.Module, world: World) -> None:
        super().__init__()
        self.root, self.world = root, world
        self.graph, self.guards = fx.Graph(), Guards()
        self.paused = False
        self.exact = False  # whether some answer holds for the example's sizes only
        self.reads_dtype = False
        self.items: dict[fx.Node, dict[Path, _Item]] = {}  # what each call returned, leaf by leaf
        self.held: dict[int, Held] = {}
        self.around = ambient()
        self.begin_watching()

    # Functions of tensors.

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if name == "__get__":
            return self._attribute(args[0], function.__self__.__name__)
        if name in operations.DATA:
            self.refuse(f"needs the numbers in a tensor ({name.strip('_')})")
        if name in operations.UNHELD or name == "__setattr__":
            self.refuse(f"calls {name.strip('_')}, which a recorded graph does not repeat")
        if name in operations.CONSTANT_METHODS:
            return function(*self.concrete(args), **self.concrete(kwargs))
        if name in operations.LENGTHS:
            return self._lengths(function, args, kwargs)
        if name == "__len__":
            return int(self._length(args[0], 0))
        if name == "__iter__":
            return iter(self._recorded(torch.Tensor.unbind, (args[0], 0), {}))
        return self._recorded(function, args, kwargs)

    def _attribute(self, x: Tensor, name: str) -> Any:
        if name == "shape":
            return torch.Size([self._length(x, d) for d in range(x.dim())])  # type: ignore[arg-type]
        if name == "dtype":
            self.reads_dtype = True
            return x.dtype
        if name == "requires_grad":
            held = self.held.get(id(x))
            if held is None or held.text is None:
                self.refuse("asks whether a computed tensor needs a gradient")
            self.guards.equal(f"{held.text}.requires_grad", x.requires_grad)
            return x.requires_grad
        if name in operations.CONSTANT_ATTRIBUTES:
            return getattr(x, name)
        if name not in operations.TENSOR_ATTRIBUTES:
            self.refuse(f"reads the attribute {name} of a tensor")
        return self._recorded(getattr, (x, name), {})

    def _lengths(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, dims = args[0], (*args[1:], *kwargs.values())
        if function.__name__ != "size":
            total: Any = 1
            for d in range(x.dim()):
                total = self._length(x, d) * total
            return total
        return self._length(x, dims[0]) if dims and dims[0] is not None else self._attribute(x, "shape")

    def _length(self, x: Tensor, dim: int) -> Length:
        dim = int(dim) % max(x.dim(), 1)
        node = self.graph.call_method("size", (self.node_of(x), dim))
        held = self.held[id(x)]
        return Length(self, self._noted(node, x.shape[dim]), x.shape[dim], held.sizes[dim])

    def _recorded(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `function` on fakes and write it down."""
        self.check_surroundings()
        self._guard_structure(getattr(function, "__name__", ""), args)
        kind, target, spelled = operations.spelled(function, args)
        given = self.argument(spelled), self.argument(kwargs)
        before = self._versions((args, kwargs))
        result = function(*self.concrete(args), **self.concrete(kwargs))
        if not _holds_tensors(result):
            self.refuse(f"takes a number out of tensors ({getattr(function, '__name__', function)})")
        node = self._noted(self.graph.create_node(kind, target, *given), result)
        sizes = result_sizes(operations.rule_name(function), self.sizes_of, args, kwargs, list(_tensors(result)))
        return self._kept(node, result, before, sizes)

    def _guard_structure(self, name: str, args: tuple[Any, ...]) -> None:
        """The number of parts and the rank of some results depend on sizes: hold those fixed."""
        if name not in operations.PARTS and name not in operations.RANKED_BY_SIZE or not args or not isinstance(args[0], Tensor):
            return
        for size, length in zip(self.sizes_of(args[0]), args[0].shape, strict=True):
            if name in operations.RANKED_BY_SIZE and not isinstance(size, int):
                self.fixed(size and f"{size} == {int(length)}", "a size")
        if name in operations.PARTS:
            dim = next((a for a in args[2:] if isinstance(a, int)), 0)
            self._length(args[0], dim).int_() if name != "unbind" else self._length(args[0], args[1] if len(args) > 1 else 0).int_()

    def _kept(self, node: fx.Node, result: Any, before: list[tuple[Tensor, int]], sizes: list[Sizes]) -> Any:
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
            if isinstance(make, _Item):
                leaves[make.path] = make
            if id(x) in inputs and id(x) not in written:
                x = torch.ops.aten.alias.default(x)  # `x.float()` may be x itself: give it a name of its own
            self.held[id(x)] = Held(x, make, known)
            return x

        if isinstance(result, Tensor):
            result = node.meta["v"] = keep(result, lambda: node, sizes[0])
            return result
        return self.adopted(result, node, iter(sizes), keep)

    def adopted(self, result: Any, node: fx.Node, sizes: Iterator[Sizes], keep: Callable[..., Tensor] | None = None) -> Any:
        """A result that holds tensors, lengths or foreign objects, each read from `node` when it is used."""
        if isinstance(result, Tensor):
            return (keep or self._hold)(result, node if isinstance(node, _Item) else lambda: node, next(sizes, (None,) * result.dim()))
        if type(result) is int:
            return Length(self, node, result, None)
        if isinstance(result, (bool, float, complex)):
            self.refuse("uses a number that a child module or a foreign object returns")
        if isinstance(result, dict):
            made = {k: self.adopted(v, _Item(self, node, k), sizes, keep) for k, v in result.items()}
            return _refilled(result, made)
        if is_record(result):
            fields = {k: self.adopted(v, _Item(self, node, k, getattr), sizes, keep) for k, v in vars(result).items()}
            made = copy.copy(result)
            vars(made).update(fields)
            return made
        if isinstance(result, (tuple, list)):
            items = [self.adopted(v, _Item(self, node, i), sizes, keep) for i, v in enumerate(result)]
            return items if type(result) is list else tuple(items) if type(result) is tuple else _refilled_tuple(result, items)
        if foreign.needs_stand_in(result):
            return foreign.Foreign(self, node, result, None)
        return result

    def _hold(self, x: Tensor, make: Callable[[], fx.Node], sizes: Sizes) -> Tensor:
        if id(x) in self.held:  # a child that hands out a tensor it keeps
            x = torch.ops.aten.alias.default(x)
        self.held[id(x)] = Held(x, make, sizes)
        return x

    def _noted(self, node: fx.Node, value: Any) -> fx.Node:
        node.meta["v"], node.meta["place"] = value, user_place()
        return node

    def _versions(self, values: Any) -> list[tuple[Tensor, int]]:
        with self.silence():
            return [(t, t._version) for t in _tensors(self.concrete(values))]

    # Arguments of nodes.

    def node_of(self, x: Tensor) -> fx.Node:
        """The node that computes a tensor."""
        held = self.held.get(id(x))
        if held is None:
            held = self.parameter(x)
        if held is None:
            self.refuse("uses a tensor that is no argument, parameter or buffer (a global, or one kept in an object)")
        if held.node is None:
            held.node = _resolved(held.make())
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
            return _resolved(x.origin)
        if foreign.is_foreign(x):
            return _resolved(foreign.parts(x)[0])
        if isinstance(x, slice):
            return slice(*map(self.argument, (x.start, x.stop, x.step)))
        if isinstance(x, dict):
            return {k: self.argument(v) for k, v in x.items()}
        if is_record(x):
            return self.graph.call_function(record_maker(type(x), tuple(vars(x))), tuple(map(self.argument, vars(x).values())))
        if isinstance(x, (list, tuple)):
            items = [self.argument(v) for v in x]
            return items if isinstance(x, list) else type(x)(*items) if hasattr(x, "_fields") else tuple(items)
        if type(x).__module__ == "numpy" and hasattr(x, "item") and not getattr(x, "ndim", 0):
            return x.item()
        if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)) or not isinstance(x, SCALARS) and x is not ...:
            self.refuse(f"passes a {type(x).__name__} to an operation")
        return x

    def concrete(self, x: Any) -> Any:
        """The example value of an argument: lengths are numbers, stand-ins are what they stand for."""
        if isinstance(x, Length):
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
            return type(x)(map(self.concrete, x)) if not isinstance(x, dict) else {k: self.concrete(v) for k, v in x.items()}
        return x

    # What lengths report.

    def derived(self, function: Callable[..., Any], operands: tuple[int | Length, ...], value: int, size: Size) -> Length:
        node = self.graph.call_function(function, tuple(self.argument(o) for o in operands))
        return Length(self, self._noted(node, value), value, size)

    def fixed(self, test: str | None, what: str) -> None:
        """The trace holds where `test` does; where it cannot be told, for the example's sizes only."""
        if test is None:
            self.exact = True
        else:
            self.guards.add(test)

    # The rules of the house.

    def check_surroundings(self) -> None:
        if ambient() != self.around:
            self.refuse("runs a part under no_grad, autocast, checkpoint or the like")

    def refuse(self, why: str) -> Any:
        raise Untraceable(f"forward {why}", user_place())

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Run code without writing it down."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before


class _Item:
    """A node that is made when it is first asked for: an element, or a field, of another node's result."""

    def __init__(self, recorder: Recorder, owner: Any, key: Any, get: Callable[..., Any] = operator.getitem) -> None:
        self.recorder, self.owner, self.key, self.get = recorder, owner, key, get
        self.node: fx.Node | None = None
        self.path: Path = (*(owner.path if isinstance(owner, _Item) else ()), key)

    def __call__(self) -> fx.Node:
        return self.resolved()

    def resolved(self) -> fx.Node:
        if self.node is None:
            owner = _resolved(self.owner)
            node = self.recorder.graph.call_function(self.get, (owner, self.key))
            node.meta["place"] = owner.meta.get("place")
            self.node = node
        return self.node


def _resolved(node: Any) -> fx.Node:
    return node.resolved() if isinstance(node, _Item) else node() if not isinstance(node, fx.Node) else node


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from _tensors(v)
    elif isinstance(value, (tuple, list)) or is_record(value):
        for v in value if isinstance(value, (tuple, list)) else vars(value).values():
            yield from _tensors(v)


def _holds_tensors(value: Any) -> bool:
    return value is None or next(_tensors(value), None) is not None or value in ((), [])


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
