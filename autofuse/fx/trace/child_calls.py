"""What a recorder does when its twin calls a child: the call is written down, and its result computed on fakes.

Children are not entered, but for a Sequential of light layers; a small child is asked how the sizes of its result
follow from those of its arguments.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from autofuse.fx.trace import foreign_objects as foreign
from autofuse.fx.trace.attribute_reads import AttributeReads, guard_path, is_known, is_light
from autofuse.fx.trace.code_facts import facts_of
from autofuse.fx.trace.containers import holds_container
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.own_forward import own_forward
from autofuse.fx.trace.real_run import result_on_random_numbers
from autofuse.fx.trace.size_sources import Sizes
from autofuse.fx.trace.twin import Twins, original_class, plain_class
from autofuse.fx.trace.values import Untraceable, tensors
from autofuse.reasons import forwards
from autofuse.reasons.reason import because
from autofuse.torch_private import FakeTensorMode, fake_mode

_KINDS = frozenset({"tuple", "list", "dict", "Tensor", "is_tensor"})
_SIZE = re.compile(r"(\w+)\.shape\[(\d+)\]")


@dataclass(frozen=True)
class ResultSizes:
    """What a small child takes for granted, and the sizes of its result, told by its own parameters' names."""

    guards: Guards
    sizes: Sizes
    signature: inspect.Signature


Inside = Callable[[nn.Module, Any, Any], ResultSizes | None]  # of a call of a module


class ChildCalls(AttributeReads):
    """The listener's half of a Recorder. `inside` looks into small children."""

    def __init__(self, root: nn.Module, world: Twins, inside: Inside) -> None:
        super().__init__(root, world)
        self.inside = inside

    def on_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A child is called: write the call down and compute its result on fakes."""
        self.check_surroundings()
        path = self.paths.get(id(module))
        if path is None and id(module) not in self.handed:
            self.refuse(because(forwards.CALLS_OTHER_MODULE, kind=type(module).__name__))
        with self.pause_recording():
            transparent = path is not None and self._transparent(module)
        if transparent and path is not None:
            self.entered_children.add(path)
            return module.forward(*args, **kwargs)
        given = self.passed(args), self.passed_by_name(kwargs)
        before = self.versions((args, kwargs))
        with self.pause_recording():
            call = self._as_passed(args, kwargs)
            result = self._overheard(module, path, args, kwargs)
            node = self.annotate(self._call_of(module, path, *given), result)
            node.meta["call"] = call
            self.take_back()
            self.touched((args, kwargs))
            return self.keep_result(node, result, before, self._child_sizes(module, path, (args, kwargs), result))

    def _overheard(self, module: nn.Module, path: str | None, args: Any, kwargs: Any) -> Any:
        """What a child returns; where that is more than a tensor, what it says of itself is guarded."""
        before, self.overheard = self.overheard, []
        try:
            result = self._returned(module, args, kwargs)
            if path is not None and (not isinstance(result, Tensor) or self._tells_results_apart()):
                self.guards.same(f"type({guard_path(path)})", plain_class(original_class(type(module))))
                self.guard_overheard(self.overheard)
                self.forms_rest_on_children = True
        finally:
            self.overheard = before
        return result

    def _tells_results_apart(self) -> bool:
        """Whether forward may ask whether a child has returned a tensor or a tuple."""
        code = getattr(own_forward(plain_class(original_class(type(self.root)))), "__code__", None)
        return code is None or any(load.name in _KINDS for load in facts_of(code).loads)

    def _returned(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """What a child returns, on fakes; where it needs numbers, on made-up ones."""
        try:
            return module.forward(*self.lent(args), **self.lent_by_name(kwargs))
        except Untraceable as error:
            self.refused = self.refused or error
            raise
        except Exception as error:  # the child's code is the user's
            mode = fake_mode()
            assert isinstance(mode, FakeTensorMode)
            given, named = self.lent(args), self.lent_by_name(kwargs)
            try:
                return result_on_random_numbers(self.world.originals[id(module)], module.training, given, named, mode)
            except Exception:
                self.refused = self.refused or Untraceable(because(forwards.RAISED, error=type(error).__name__))
                raise error from None

    def _as_passed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments as they are before the child changes them, where it may: a cache grows. None elsewhere."""
        if not any(foreign.is_foreign(x) or holds_container(x) for x in (*args, *kwargs.values())):
            return None
        world = Twins(lambda x: x, watched=False, deep=True)
        given, named = self.lent(args), self.lent_by_name(kwargs)
        return tuple(map(world.of, given)), {k: world.of(v) for k, v in named.items()}

    def _call_of(self, module: nn.Module, path: str | None, args: Any, kwargs: Any) -> fx.Node:
        if path is not None:
            return self.graph.create_node("call_module", path, args, kwargs)
        return self.graph.call_function(call_handed, (self.handed[id(module)], *args), kwargs)

    def handed_in(self, module: nn.Module, node: fx.Node, text: str) -> nn.Module:
        """A module that is an argument of forward: it may be called and passed on, and its plain attributes read."""
        twin: nn.Module = self.world.of(self.world.originals.get(id(module), module))
        if id(twin) not in self.paths:
            self.handed[id(twin)] = node
            self.owners.setdefault(id(twin), text)
        node.meta["v"] = twin
        return twin

    def module(self, x: nn.Module) -> fx.Node:
        if id(x) in self.handed:
            return self.handed[id(x)]
        path = self.paths.get(id(x))
        if not path:
            self.refuse(because(forwards.PASSES_MODULE, kind=type(x).__name__))
        node = self.graph.create_node("get_attr", path)
        node.meta["v"] = x
        return node

    def _transparent(self, module: nn.Module) -> bool:
        """Whether a Sequential holds light layers only, so that it says nothing that its parts do not."""
        original = self.world.originals[id(module)]
        return type(original) is nn.Sequential and all(
            is_light(self.world.originals[id(m)]) or self._transparent(m) for m in module.children()
        )

    def _child_sizes(self, module: nn.Module, path: str | None, call: tuple[Any, Any], result: Any) -> list[Any]:
        args, original = call[0], self.world.originals[id(module)]
        if not isinstance(result, Tensor) or not args or not isinstance(args[0], Tensor):
            return [(None,) * t.dim() for t in tensors(result)]
        kind, given = type(original), self.sizes_of(args[0])
        if kind is nn.Linear:
            return [(*given[:-1], int(result.shape[-1]))]
        if kind is nn.Embedding:
            return [(*given, int(result.shape[-1]))]
        if is_known(kind):
            return [given]
        return [self._sizes_inside(original, path, call) or (None,) * result.dim()]

    def _sizes_inside(self, child: nn.Module, path: str | None, call: tuple[Any, Any]) -> Sizes | None:
        """The sizes of what a small child returns, told by those of its arguments; what it rests on is guarded."""
        if path is None or not is_light(child):
            return None
        sized = self.inside(child, *map(self.concrete, call))
        if sized is None:
            return None
        given = sized.signature.bind(child, *call[0], **call[1]).arguments
        self.guards.add_childs(sized.guards, guard_path(path))
        return tuple(self._size_inside(size, given) for size in sized.sizes)

    def _size_inside(self, size: Any, given: Mapping[str, Any]) -> Any:
        told = _SIZE.fullmatch(size) if isinstance(size, str) else None
        if told is None:
            return size if isinstance(size, int) else None
        argument = given.get(told[1])
        return self.sizes_of(argument)[int(told[2])] if isinstance(argument, Tensor) else None


def call_handed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """A module that was an argument, called."""
    return module(*args, **kwargs)
