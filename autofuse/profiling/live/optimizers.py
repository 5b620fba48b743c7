"""Restores optimizers after a profile ran their steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook


@contextmanager
def preserved_optimizers() -> Iterator[None]:
    """After the block, restore the state and the settings of every optimizer that stepped in it.

    The copy is kept on the CPU, so that the device's peak memory is that of the step. Schedulers and gradient scalers
    are not restored, because optimizers do not know them.
    """
    seen: set[int] = set()
    with ExitStack() as stack:

        def on_step(optimizer: Optimizer, *_: Any) -> None:
            if id(optimizer) not in seen:
                seen.add(id(optimizer))
                stack.callback(_save_state(optimizer))

        hook = register_optimizer_step_pre_hook(on_step)
        try:
            yield
        finally:
            hook.remove()


def _save_state(optimizer: Optimizer) -> Callable[[], None]:
    settings = [
        {key: copy.copy(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]
    state = {parameter: {key: (value, _copy(value)) for key, value in entry.items()}
             for parameter, entry in optimizer.state.items()}  # fmt: skip

    def restore() -> None:
        for group, saved in zip(optimizer.param_groups, settings, strict=True):
            group.update(saved)
        optimizer.state.clear()
        for parameter, entry in state.items():
            optimizer.state[parameter] = {key: _restore_value(held, value) for key, (held, value) in entry.items()}

    return restore


def _copy(held: Any) -> Any:
    return held.detach().to("cpu", copy=True) if isinstance(held, Tensor) else copy.copy(held)


def _restore_value(held: Any, value: Any) -> Any:
    """Return the original tensor with its original numbers, because others may hold it, too."""
    if not isinstance(held, Tensor):
        return value
    with torch.no_grad():
        held.copy_(value)
    return held
