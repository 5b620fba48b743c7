"""Puts modules, tensors and random generators back as they were. It knows state, not why anybody changed it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def preserved(modules: Sequence[nn.Module], tensors: Sequence[Tensor] = ()) -> Iterator[None]:
    """After the block, all is as before: values and gradients of parameters, buffers, train or eval of every module,
    gradients of `tensors`, and the random states of torch (all devices), Python and, where loaded, numpy.

    In the block parameters and tensors start without a gradient. Values are kept on the CPU, so that the device's peak
    memory stays that of the step. Not restored: the state of optimizers, plain attributes that a forward assigns, and
    values of `tensors` that are written in place.
    """
    with ExitStack() as stack:
        for restore in (*map(_kept_modes, modules), *map(_kept_buffers, modules), _kept_values(modules)):
            stack.callback(restore)
        stack.callback(_kept_gradients([*_parameters(modules), *tensors]))
        stack.callback(_kept_random_states())
        yield


def _parameters(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Each parameter once, even where the modules share it."""
    return list(dict.fromkeys(parameter for module in modules for parameter in module.parameters()))


def _kept_modes(module: nn.Module) -> Callable[[], None]:
    modes = {part: part.training for part in module.modules()}

    def restore() -> None:
        # Not train(): that would overwrite children, and call what subclasses made of it.
        for part, mode in modes.items():
            part.training = mode

    return restore


def _kept_buffers(module: nn.Module) -> Callable[[], None]:
    """Which tensor each buffer is: forwards replace buffers (`self.seen = self.seen + 1`)."""
    buffers = {part: dict(part._buffers) for part in module.modules()}

    def restore() -> None:
        for part, kept in buffers.items():
            part._buffers.clear()
            part._buffers.update(kept)

    return restore


def _kept_values(modules: Sequence[nn.Module]) -> Callable[[], None]:
    buffers = [buffer for module in modules for buffer in module.buffers()]
    values = {tensor: tensor.detach().to("cpu", copy=True) for tensor in (*_parameters(modules), *buffers)}

    def restore() -> None:
        with torch.no_grad():
            for tensor, value in values.items():
                # A write, even of equal values, would break the backward of a graph that the caller still holds.
                if not torch.equal(tensor.detach().cpu(), value):
                    tensor.copy_(value)

    return restore


def _kept_gradients(tensors: Sequence[Tensor]) -> Callable[[], None]:
    gradients = {tensor: tensor.grad for tensor in tensors if tensor.requires_grad and tensor.is_leaf}
    for tensor in gradients:
        tensor.grad = None

    def restore() -> None:
        for tensor, gradient in gradients.items():
            tensor.grad = gradient

    return restore


def _kept_random_states() -> Callable[[], None]:
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
