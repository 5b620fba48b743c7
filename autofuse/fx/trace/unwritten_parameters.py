"""Protects the user's parameters during a run on copies that share them: `self.w.data.clamp_(0.6, 1.4)`.

Before a torch function may write to the memory of a parameter, the parameter is copied. After the run it is restored.
Parameters that are not written to are not copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from autofuse.fx.trace.reachable import attributes_of_tensor
from autofuse.fx.trace.snapshots import Snapshot
from autofuse.fx.trace.user_code import pause_watching
from autofuse.fx.trace.values import Untraceable, tensors
from autofuse.reasons import forwards
from autofuse.reasons.reason import because

_WRITES = frozenset({
    "__setitem__", "__set__", "__delete__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__",
    "__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__", "numpy", "__array__", "data_ptr", "untyped_storage",
    "storage", "__dlpack__",
})  # fmt: skip
_HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook", "retain_grad"})


class UnwrittenParameters(TorchFunctionMode):
    """Sees every function of tensors, and copies a parameter before the first one that may write to it."""

    def __init__(self) -> None:
        super().__init__()
        self._shared: dict[int, nn.Parameter] = {}  # the address of its memory -> the parameter
        self._before: dict[int, tuple[nn.Parameter, Tensor, Tensor, bool]] = {}
        self._attributes: dict[int, tuple[nn.Parameter, dict[str, Any]]] = {}  # those that the program has set
        self._held = Snapshot()  # what these attributes hold

    def share(self, x: Tensor) -> Tensor:
        """Returns the tensor to use in the run: a parameter itself, a copy of any other tensor."""
        if not isinstance(x, nn.Parameter):
            return x.detach().clone()
        if id(x) not in self._attributes:
            self._attributes[id(x)] = x, attributes_of_tensor(x)
            for name, held in attributes_of_tensor(x).items():
                self._held.note(held, name)
        if (place := _address(x)) is not None:
            self._shared[place] = x
        return x

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with pause_watching():
            name = getattr(function, "__name__", "")
            # A hook would stay on the user's parameter after this run.
            if name in _HOOKS and args and isinstance(args[0], nn.Parameter):
                raise Untraceable(because(forwards.CALLS_UNHELD, name=name))
            if name in _WRITES or name.endswith("_") and name[-2:] != "__" or "out" in (kwargs or {}):
                self._keep((args, kwargs or {}))
            return function(*args, **kwargs or {})

    def _keep(self, operands: Any) -> None:
        for x in tensors(operands):
            parameter = self._shared.get(_address(x) or 0)
            if parameter is not None and id(parameter) not in self._before:
                inside = parameter.detach()
                self._before[id(parameter)] = parameter, parameter.data, inside.clone(), parameter.requires_grad

    def put_back(self) -> None:
        """Restores the values of all parameters that were copied, and the attributes of all."""
        for parameter, memory, numbers, gradient in self._before.values():
            if _address(parameter) != _address(memory) or parameter.shape != memory.shape:
                parameter.data = memory
            if not torch.equal(memory, numbers):  # a write of equal numbers would still count as a new version
                memory.copy_(numbers)
            parameter.requires_grad_(gradient)
        for parameter, attributes in self._attributes.values():
            _put_attributes(parameter, attributes)
        self._held.restore()


@contextmanager
def restore_parameters(parameters: UnwrittenParameters) -> Iterator[None]:
    """Restores on exit the parameters that this block writes to."""
    try:
        with parameters:
            yield
    finally:
        with pause_watching(), torch.no_grad():
            parameters.put_back()


def _put_attributes(parameter: nn.Parameter, before: dict[str, Any]) -> None:
    now = attributes_of_tensor(parameter)
    for name in now.keys() - before.keys():
        delattr(parameter, name)
    for name, held in before.items():
        if now.get(name, parameter) is not held:
            setattr(parameter, name, held)


def _address(x: Tensor) -> int | None:
    """Returns the address of a tensor's memory, or None if the tensor has no memory that can be read."""
    try:
        return x.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None
