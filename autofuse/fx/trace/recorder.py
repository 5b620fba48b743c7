"""Records a forward's operations on tensors as an fx graph, while the forward runs once on a twin.

The tensors are fakes and are known by identity, so `isinstance`, in-place operations and views behave as usual. Sizes
are Lengths. Children are called but not entered. torch is not patched: a TorchFunctionMode sees every function. This
file knows what a forward must not do. Guards collect what the graph assumes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd import grad_mode
from torch.overrides import TorchFunctionMode

from autofuse.fx.trace import grouped_products, no_grad
from autofuse.fx.trace import torch_functions as operations
from autofuse.fx.trace.ambient_state import device_by_default
from autofuse.fx.trace.attribute_reads import guard_tensor
from autofuse.fx.trace.child_calls import ChildCalls, SizesInside
from autofuse.fx.trace.expert_rows import NOT_HANDLED, ExpertRows
from autofuse.fx.trace.mask_assignments import mask_of
from autofuse.fx.trace.own_sizes import own_tensors_behind, size_guard
from autofuse.fx.trace.size_sources import result_sizes
from autofuse.fx.trace.symbolic_sizes import Length
from autofuse.fx.trace.twin import Twins
from autofuse.fx.trace.user_code import pause_watching
from autofuse.fx.trace.values import holds_tensors, tensors
from autofuse.reasons import forwards
from autofuse.reasons.reason import because


class Recorder(ChildCalls, ExpertRows, TorchFunctionMode):
    """Records one run of one module's forward."""

    def __init__(self, root: nn.Module, world: Twins, inside: SizesInside) -> None:
        super().__init__(root, world, inside)
        self.reads_dtype, self.detached = False, no_grad.Detached()
        self.begin_rows()
        self.begin_watching()

    # Functions of tensors.

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with pause_watching():
            return self._operation(function, args, kwargs or {})

    def _operation(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paused:
            return grouped_products.run(function, args, kwargs)
        name = getattr(function, "__name__", "")
        if name == "__get__":
            return self._attribute(args[0], function.__self__.__name__)
        if (found := self.operation_on_rows(function, name, args, kwargs)) is not NOT_HANDLED:
            return found
        if name in operations.DATA:
            self.refuse(because(forwards.NEEDS_NUMBERS, name=name.strip("_")))
        if name == "_set_grad_enabled":  # check_surroundings checks the operations that run under it
            turned_on = True in args or True in kwargs.values()  # no change in a trace, but a change under no_grad
            if turned_on and not _is_end_of_context():
                self.guards.add(f"{self.guards.constant(torch.is_grad_enabled)}()")
            return function(*args, **kwargs)
        if name in operations.NOT_REPEATABLE or name == "__setattr__":
            self.refuse(because(forwards.CALLS_UNHELD, name=name.strip("_")))
        if name in operations.CONSTANT_METHODS:
            if name in operations.DTYPE_QUERIES:
                self._guard_dtype(*tensors((args, kwargs)))
            return function(*self.concrete(args), **self.concrete(kwargs))
        if name in operations.LENGTHS:
            return self._lengths(function, args, kwargs)
        if name == "__len__":
            return int(self._length(args[0], 0))
        if name == "__setitem__" and (found := mask_of(args[0], args[1], args[2], self.sizes_of)):
            mask, tests = found
            for test in tests:
                self.assume(test, "a size")
            self._record(torch.Tensor.masked_fill_, (args[0], mask, args[2]), {})
            return None
        if name == "__iter__":
            return iter(self._record(torch.Tensor.unbind, (args[0], 0), {}))
        return self._record(function, args, kwargs)

    def _attribute(self, x: Tensor, name: str) -> Any:
        if name == "shape":
            lengths: list[Any] = [self._length(x, d) for d in range(x.dim())]
            return torch.Size(lengths)
        if name == "dtype":
            self._guard_dtype(x)
            return x.dtype
        if name == "requires_grad":
            held = self.held.get(id(x))
            if held is None or held.text is None:
                self.refuse(because(forwards.ASKS_GRADIENT))
            self.guards.equal(f"{held.text}.requires_grad", x.requires_grad)
            return x.requires_grad
        if name == "is_leaf":
            self.refuse(because(forwards.ASKS_GRADIENT))
        if name in operations.CONSTANT_ATTRIBUTES:
            if name in operations.DTYPE_QUERIES:
                self._guard_dtype(x)
            return getattr(x, name)
        if name not in operations.TENSOR_ATTRIBUTES:
            self.refuse(because(forwards.READS_ATTRIBUTE, name=name))
        return self._record(getattr, (x, name), {})

    def _guard_dtype(self, x: Tensor) -> None:
        """Guards the dtype of a tensor, which may depend on a parameter, a buffer or the default dtype."""
        self.reads_dtype = True
        node = self.node_of(x)
        if node.op == "get_attr":
            with self.pause_recording():
                self.guards.same(f"{guard_tensor(self.root, str(node.target))}.dtype", x.dtype)
        elif x.dtype == torch.get_default_dtype() and _may_be_default(node, x.dtype):
            self.guards.same(f"{self.guards.constant(torch.get_default_dtype)}()", x.dtype)

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
        return Length(self, self.annotate(node, x.shape[dim]), x.shape[dim], held.sizes[dim])

    def fix_own_sizes(self, origin: Any) -> None:
        """Guards the sizes of the module's own tensors from which a size was computed that forward uses as a number."""
        with self.pause_recording():
            original = self.world.originals[id(self.root)]
            tests = {name: size_guard(self.root, original, name) for name in own_tensors_behind(origin, self.root)}
        for name, test in tests.items():
            self.guards.add(test) if test else self.refuse(because(forwards.SYMBOLIC_SIZE, name=name))

    def _record(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs `function` on fakes and adds a node for it."""
        detaches = self._must_detach(function, args, kwargs)
        self._guard_structure(getattr(function, "__name__", ""), args, kwargs)
        self._check_mask(getattr(function, "__name__", ""), args, kwargs)
        self.operators.update(operations.operators_of(function))
        kind, target, operands = operations.graph_call(function, args)
        arguments = self.argument(operands), self.argument(kwargs)
        versions = self.versions((args, kwargs))
        result = grouped_products.run(function, self.concrete(args), self.concrete(kwargs))
        if not holds_tensors(result):
            self.refuse(because(forwards.TAKES_NUMBER, name=getattr(function, "__name__", function)))
        if detaches and no_grad.returns_operand(result, (args, kwargs)):
            for t in tensors(result):
                self._guard_dtype(t)  # with another dtype it is a new tensor, without a gradient
        elif detaches:
            operand_nodes = {self.node_of(t): t for t in tensors((args, kwargs))}
            arguments = self.detached.arguments(self.graph, arguments, operand_nodes)
            self.detached.add(result)
        if next(tensors((args, kwargs)), None) is None and kwargs.get("device") is None:
            self.guards.add(f"_default_device({self.guards.constant(device_by_default())})")
        node = self.annotate(self.graph.create_node(kind, target, *arguments), result)
        result_tensors = list(tensors(result))
        sizes = result_sizes(operations.rule_name(function), self.sizes_of, args, kwargs, result_tensors)
        return self.keep_result(
            node, result, versions, self.sizes_with_names(self.rows_of(args, kwargs), result_tensors, sizes)
        )

    def _must_detach(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns whether the operation runs under no_grad, and this changes a gradient."""
        if not self.is_under_no_grad() or not self.may_have_gradient((args, kwargs)):
            return False
        if not no_grad.can_detach(getattr(function, "__name__", ""), args, kwargs):
            self.refuse(because(forwards.UNDER_CONTEXT))
        self.guards.add(f"{self.guards.constant(no_grad.has_plain_derivatives)}()")
        return True

    def _child_sizes(self, module: nn.Module, path: str | None, call: tuple[Any, Any], result: Any) -> list[Any]:
        sizes = super()._child_sizes(module, path, call, result)
        return self.sizes_with_names(self.rows_of(call), list(tensors(result)), sizes)

    def with_rows(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records an operation on tensors with rows. Its results have as many rows."""
        return self._record(function, args, kwargs)

    def length(self, x: Tensor, dim: int) -> Any:
        """Returns the length of a dimension."""
        return self._length(x, dim)

    def put(self, args: tuple[Any, ...]) -> None:
        """Records `x[rows] = y`."""
        self._record(torch.Tensor.__setitem__, args, {})

    def _check_mask(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuses a mask that is not boolean. Real tensors raise an error there, but fakes do not."""
        mask = kwargs.get("mask", args[1] if len(args) > 1 else None)
        if name in ("masked_fill", "masked_fill_") and isinstance(mask, Tensor) and mask.dtype is not torch.bool:
            error = f"RuntimeError ({name} only supports boolean masks)"
            self.refuse(because(forwards.RAISED, error=error))

    def _guard_structure(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Fixes the sizes on which the number or the rank of the results depends."""
        if (
            name not in operations.PARTS
            and name not in operations.RANK_DEPENDS_ON_SIZE
            or not args
            or not isinstance(args[0], Tensor)
        ):
            return
        rank = args[0].dim()
        wanted = kwargs.get("dim", args[1] if len(args) > 1 else None)
        for dim, (size, length) in enumerate(zip(self.sizes_of(args[0]), args[0].shape, strict=True)):
            if type(wanted) is int and wanted % rank != dim:
                continue
            if name in operations.RANK_DEPENDS_ON_SIZE and not isinstance(size, int):
                self.assume(size and f"{size} == {int(length)}", "a size")
        if name in operations.PARTS:
            arguments = args[1:] if name == "unbind" else args[2:]
            dim = kwargs.get("dim", arguments[0] if arguments else 0)
            self._length(args[0], dim).int_()


def _may_be_default(node: fx.Node, dtype: torch.dtype) -> bool:
    """Returns whether this tensor, or one that it is computed from, has a dtype that none of its operands has."""
    todo, seen = [node], set[fx.Node]()
    while todo:
        node = todo.pop()
        if node in seen or node.op in ("placeholder", "get_attr", "call_module"):
            continue
        seen.add(node)
        value = node.meta.get("v")
        operands = [v for n in node.all_input_nodes if isinstance(v := n.meta.get("v"), Tensor)]
        if isinstance(value, Tensor) and value.dtype == dtype and all(v.dtype != dtype for v in operands):
            return True
        todo += node.all_input_nodes
    return False


def _is_end_of_context() -> bool:
    """Returns whether torch, not the user's code, sets the gradient mode: at the end of `with torch.no_grad():`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != grad_mode.__file__:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename == grad_mode.__file__:
        if frame.f_code.co_name == "__exit__":
            return True
        frame = frame.f_back
    return False
