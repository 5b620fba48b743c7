"""The part of a recorder that handles calls of children: it records the call and computes the result on fake tensors.

The trace does not enter children, except a Sequential of light layers. For a small child it determines how the sizes of
the result follow from the sizes of the arguments.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from autofuse.fx.trace import foreign_objects as foreign
from autofuse.fx.trace.attribute_reads import AttributeReads, guard_path, is_known, is_light
from autofuse.fx.trace.code_facts import facts_of
from autofuse.fx.trace.containers import holds_container
from autofuse.fx.trace.coroutines import close_coroutines
from autofuse.fx.trace.foreign_calls import holds_objects
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.no_grad import call_without_gradients
from autofuse.fx.trace.own_forward import own_forward
from autofuse.fx.trace.real_run import result_on_random_numbers
from autofuse.fx.trace.size_origins import Sizes
from autofuse.fx.trace.twin import EVERY_NAME, IntegersRead, Twins, note_integers, original_class, plain_class
from autofuse.fx.trace.values import Untraceable, tensors
from autofuse.reasons import forwards
from autofuse.reasons.reason import because
from autofuse.torch_private import FakeTensorMode, fake_mode

_KINDS = frozenset({"tuple", "list", "dict", "Tensor", "is_tensor"})
_SIZE = re.compile(r"(\w+)\.shape\[(\d+)\]")


@dataclass(frozen=True)
class ResultSizes:
    """The guards of a small child and the sizes of its result, in terms of the names of its own parameters."""

    guards: Guards
    sizes: Sizes
    signature: inspect.Signature


SizesInside = Callable[[nn.Module, Any, Any], ResultSizes | None]  # called with a module, args and kwargs


class ChildCalls(AttributeReads):
    """The part of a Recorder that listens to calls.

    Attributes:
        inside: traces a small child for the sizes of its result.
    """

    def __init__(self, root: nn.Module, world: Twins, inside: SizesInside) -> None:
        super().__init__(root, world)
        self.inside = inside
        self.called: Counter[str] = Counter()  # names of the children that were called
        self.integers_of_children: dict[str, IntegersRead] = {}  # name of a child -> the integers that its calls read

    def on_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the call of a child and compute its result on fake tensors."""
        under_no_grad = self.is_under_no_grad()
        path = self.paths.get(id(module))
        if path is None and id(module) not in self.module_arguments:
            self.refuse(because(forwards.CALLS_OTHER_MODULE, kind=type(module).__name__))
        with self.pause_recording():
            transparent = path is not None and self._is_transparent(module)
        if transparent and path is not None:
            self.entered_children.add(path)
            return module.forward(*args, **kwargs)
        arguments = self.argument_nodes(args), self.keyword_nodes(kwargs)
        self._note_child(path, (*args, *kwargs.values()))
        before = self.versions((args, kwargs))  # shows which arguments the child writes to
        with self.pause_recording():
            call = self._copy_arguments(args, kwargs)
            result = self._run_and_guard(module, path, args, kwargs)
            self.child_writes.examine(self.outside.ran)
            call_node = self._call_node_without_gradients if under_no_grad else self._call_node
            node = self.annotate(call_node(module, path, *arguments), result)
            node.meta["call"] = call
            self.record_changes_of_others()
            self.forget_state((args, kwargs))
            if close_coroutines(result):
                self.refuse(because(forwards.READS_STATE, name=f"the result of {path}", kind="coroutine"))
            return self.keep_result(node, result, before, self._child_sizes(module, path, (args, kwargs), result))

    def _note_child(self, path: str | None, arguments: tuple[Any, ...]) -> None:
        """Note that a child is called, and whether it gets an object."""
        if path is not None:
            self.called[path] += 1
        if any(holds_objects(x) for x in arguments):
            self.object_uses.others |= path is None
            self.object_uses.children |= {path} if path is not None else set()

    def _run_and_guard(self, module: nn.Module, path: str | None, args: Any, kwargs: Any) -> Any:
        """The result of a child. If it is more than a tensor, guard the flags that the child read."""
        before, self.reads_of_child = self.reads_of_child, []
        try:
            result = self._run_child(module, args, kwargs)
            if path is not None and (not isinstance(result, Tensor) or self._may_test_result_type()):
                self.guards.same(f"type({guard_path(path)})", plain_class(original_class(type(module))))
                self.guard_child_flags(self.reads_of_child)
                self.result_types_depend_on_children = True
        finally:
            self._note_integers_of_child(path, self.reads_of_child)
            self.reads_of_child = before
        return result

    def _note_integers_of_child(self, path: str | None, reads: list[tuple[Any, str, Any]]) -> None:
        """Note the integers that a call of a child read. Whether the result depends on them is for its own plan."""
        integers = {(id(owner), name) for owner, name, value in reads if type(value) is int}
        if path is None:
            note_integers(integers)
        else:
            self.integers_of_children.setdefault(path, set()).update(integers)

    def all_integers_of_children(self) -> IntegersRead:
        """The integers that the calls of all children read."""
        return IntegersRead().union(*self.integers_of_children.values())

    def _may_test_result_type(self) -> bool:
        """Whether forward may test whether a child returned a tensor or a tuple."""
        code = getattr(own_forward(plain_class(original_class(type(self.root)))), "__code__", None)
        # A forward without Python code may do anything.
        return code is None or any(load.name in _KINDS for load in facts_of(code).loads)

    def _run_child(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The result of a child on fake tensors; on random tensors if the child needs numbers."""
        try:
            return module.forward(*self.example_value(args), **self.example_keywords(kwargs))
        except Untraceable as error:
            self.refused = self.refused or error
            raise
        except Exception as error:  # the user's child may raise anything, for example because a fake has no numbers
            mode = fake_mode()
            assert isinstance(mode, FakeTensorMode)
            arguments, keywords = self.example_value(args), self.example_keywords(kwargs)
            note_integers([EVERY_NAME])  # nothing reports what a run on numbers reads
            try:
                return result_on_random_numbers(
                    self.world.originals[id(module)], module.training, arguments, keywords, mode
                )
            except Exception:
                self.refused = self.refused or Untraceable(because(forwards.RAISED, error=type(error).__name__))
                raise error from None

    def _copy_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A copy of the arguments before the child may change them, such as a cache that grows; None if it cannot."""
        if not any(foreign.is_foreign(x) or holds_container(x) for x in (*args, *kwargs.values())):
            return None
        world = Twins(lambda x: x, watched=False, deep=True)
        arguments, keywords = self.example_value(args), self.example_keywords(kwargs)
        return tuple(map(world.of, arguments)), {k: world.of(v) for k, v in keywords.items()}

    def _call_node(self, module: nn.Module, path: str | None, args: Any, kwargs: Any) -> fx.Node:
        if path is not None:
            return self.graph.create_node("call_module", path, args, kwargs)
        return self.graph.call_function(call_module_argument, (self.module_arguments[id(module)], *args), kwargs)

    def _call_node_without_gradients(self, module: nn.Module, path: str | None, args: Any, kwargs: Any) -> fx.Node:
        return self.graph.call_function(call_without_gradients, (self.module(module), *args), kwargs)

    def module_argument(self, module: nn.Module, node: fx.Node, text: str) -> nn.Module:
        """The twin of a module that is an argument of forward.

        Forward may call it, pass it on, and read its plain attributes.
        """
        twin: nn.Module = self.world.of(self.world.originals.get(id(module), module))
        if id(twin) not in self.paths:
            self.module_arguments[id(twin)] = node
            self.owners.setdefault(id(twin), text)
        node.meta["v"] = twin
        return twin

    def module(self, x: nn.Module) -> fx.Node:
        """The node of a module that is passed as an argument."""
        if id(x) in self.module_arguments:
            return self.module_arguments[id(x)]
        path = self.paths.get(id(x))
        if not path:
            self.refuse(because(forwards.PASSES_MODULE, kind=type(x).__name__))
        node = self.graph.create_node("get_attr", path)
        node.meta["v"] = x
        return node

    def _is_transparent(self, module: nn.Module) -> bool:
        """Whether a module is a Sequential of light layers only, which can be traced without a call of its own."""
        original = self.world.originals[id(module)]
        return type(original) is nn.Sequential and all(
            is_light(self.world.originals[id(m)]) or self._is_transparent(m) for m in module.children()
        )

    def _child_sizes(self, module: nn.Module, path: str | None, call: tuple[Any, Any], result: Any) -> list[Any]:
        args, original = call[0], self.world.originals[id(module)]
        if not isinstance(result, Tensor) or not args or not isinstance(args[0], Tensor):
            return [(None,) * t.dim() for t in tensors(result)]
        kind, input_sizes = type(original), self.sizes_of(args[0])
        if kind is nn.Linear:
            return [(*input_sizes[:-1], int(result.shape[-1]))]
        if kind is nn.Embedding:
            return [(*input_sizes, int(result.shape[-1]))]
        if is_known(kind):
            return [input_sizes]
        return [self._sizes_of_child(original, path, call) or (None,) * result.dim()]

    def _sizes_of_child(self, child: nn.Module, path: str | None, call: tuple[Any, Any]) -> Sizes | None:
        """The sizes of a small child's result, in terms of the sizes of its arguments. Adds the guards of the child."""
        if path is None or not is_light(child):
            return None
        sized = self.inside(child, *map(self.concrete, call))
        if sized is None:
            return None
        arguments = sized.signature.bind(child, *call[0], **call[1]).arguments
        self.guards.add_child_guards(sized.guards, guard_path(path))
        return tuple(self._size_in_caller(size, arguments) for size in sized.sizes)

    def _size_in_caller(self, size: Any, arguments: Mapping[str, Any]) -> Any:
        match = _SIZE.fullmatch(size) if isinstance(size, str) else None
        if match is None:
            return size if isinstance(size, int) else None
        argument = arguments.get(match[1])
        return self.sizes_of(argument)[int(match[2])] if isinstance(argument, Tensor) else None


def call_module_argument(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module that is an argument of forward."""
    return module(*args, **kwargs)
