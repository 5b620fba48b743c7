"""Restores the state of modules, tensors and random generators after a block."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def preserve_state(modules: Sequence[nn.Module], tensors: Sequence[Tensor] = ()) -> Iterator[None]:
    """Restores state at the end of the block.

    Restored are:

    - values and gradients of parameters, buffers, and the training mode of every module,
    - gradients of `tensors`,
    - the random states of torch (all devices), Python and, if it is loaded, numpy.

    Not restored are the state of optimizers, other attributes that a forward assigns, and values of `tensors` that are
    changed in place.

    At the start of the block parameters and tensors have no gradient. The saved values are on the CPU, so they do not
    add to the device's peak memory.
    """
    with ExitStack() as stack:
        for restore in (*map(_save_modes, modules), *map(_save_buffers, modules), _save_values(modules)):
            stack.callback(restore)
        stack.callback(_save_gradients([*_parameters(modules), *tensors]))
        stack.callback(_save_random_states())
        yield


def _parameters(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Returns each parameter once, also if several modules share it."""
    return list(dict.fromkeys(parameter for module in modules for parameter in module.parameters()))


def _save_modes(module: nn.Module) -> Callable[[], None]:
    modes = {part: part.training for part in module.modules()}

    def restore() -> None:
        # train() would also set the mode of children, and a subclass may override it.
        for part, mode in modes.items():
            part.training = mode

    return restore


def _save_buffers(module: nn.Module) -> Callable[[], None]:
    """Saves the tensor objects of buffers, because a forward may replace them: `self.count = self.count + 1`."""
    buffers = {part: dict(part._buffers) for part in module.modules()}

    def restore() -> None:
        for part, saved in buffers.items():
            part._buffers.clear()
            part._buffers.update(saved)

    return restore


def _save_values(modules: Sequence[nn.Module]) -> Callable[[], None]:
    buffers = [buffer for module in modules for buffer in module.buffers()]
    values = {tensor: tensor.detach().to("cpu", copy=True) for tensor in (*_parameters(modules), *buffers)}

    def restore() -> None:
        with torch.no_grad():
            for tensor, value in values.items():
                # A write, also of equal values, would make the backward of an existing autograd graph fail.
                if not torch.equal(tensor.detach().cpu(), value):
                    tensor.copy_(value)

    return restore


def _save_gradients(tensors: Sequence[Tensor]) -> Callable[[], None]:
    gradients = {tensor: tensor.grad for tensor in tensors if tensor.requires_grad and tensor.is_leaf}
    for tensor in gradients:
        tensor.grad = None

    def restore() -> None:
        for tensor, gradient in gradients.items():
            tensor.grad = gradient

    return restore


def _save_random_states() -> Callable[[], None]:
    python, cpu = random.getstate(), torch.random.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    numpy: Any = sys.modules.get("numpy")
    legacy = numpy.random.get_state() if numpy else None

    def restore() -> None:
        random.setstate(python)
        torch.random.set_rng_state(cpu)
        if devices:
            torch.cuda.set_rng_state_all(devices)
        if numpy:
            numpy.random.set_state(legacy)

    return restore
