"""A run on copies that share the user's parameters must not write to them: `self.w.data.clamp_(0.6, 1.4)`.

Before a function of torch's may write to what is a parameter, or lies in its memory, the parameter is copied; after the
run it is put back. Parameters that nobody writes to are not copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from autofuse.fx.trace.user_code import unfollowed
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
    """Hears of every function of tensors, and keeps what a parameter was before the first that may write to it."""

    def __init__(self) -> None:
        super().__init__()
        self._shared: dict[int, nn.Parameter] = {}  # where its memory starts -> the parameter
        self._before: dict[int, tuple[nn.Parameter, Tensor, Tensor, bool]] = {}

    def shared(self, x: Tensor) -> Tensor:
        """What stands for a tensor in the run: a parameter itself, a copy of any other."""
        if not isinstance(x, nn.Parameter):
            return x.detach().clone()
        if (place := _memory(x)) is not None:
            self._shared[place] = x
        return x

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with unfollowed():
            name = getattr(function, "__name__", "")
            if name in _HOOKS and args and isinstance(args[0], nn.Parameter):
                raise Untraceable(because(forwards.CALLS_UNHELD, name=name))
            if name in _WRITES or name.endswith("_") and name[-2:] != "__" or "out" in (kwargs or {}):
                self._keep((args, kwargs or {}))
            return function(*args, **kwargs or {})

    def _keep(self, operands: Any) -> None:
        for x in tensors(operands):
            parameter = self._shared.get(_memory(x) or 0)
            if parameter is not None and id(parameter) not in self._before:
                inside = parameter.detach()
                self._before[id(parameter)] = parameter, parameter.data, inside.clone(), parameter.requires_grad

    def put_back(self) -> None:
        """Give every parameter the numbers that it had."""
        for parameter, memory, numbers, gradient in self._before.values():
            if _memory(parameter) != _memory(memory) or parameter.shape != memory.shape:
                parameter.data = memory
            if not torch.equal(memory, numbers):
                memory.copy_(numbers)
            parameter.requires_grad_(gradient)


@contextmanager
def unwritten(parameters: UnwrittenParameters) -> Iterator[None]:
    """Put back what is written to parameters in this block."""
    try:
        with parameters:
            yield
    finally:
        with unfollowed(), torch.no_grad():
            parameters.put_back()


def _memory(x: Tensor) -> int | None:
    """Where the memory of a tensor starts; None for one without, or whose memory is not its own to show."""
    try:
        return x.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None
