"""Finds the result of a child that cannot run on fakes: a twin of it runs on random numbers.

A mixture of experts selects rows by the values of a tensor, and a kernel may have no fake. The parent only needs the
ranks and dtypes of the result. This file does not use graphs, and the child itself does not run.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.trace.contents import all_states, changes, state_of
from autofuse.fx.trace.runs_on_copies import without_effects
from autofuse.fx.trace.stand_ins import Form, random_tensor
from autofuse.fx.trace.twin import Twins, active
from autofuse.fx.trace.unseen_copies import UnseenCopies
from autofuse.fx.trace.unwritten_parameters import UnwrittenParameters, restore_parameters
from autofuse.torch_private import FakeTensorMode, unset_fake_temporarily

_SEED = 0


def result_on_random_numbers(module: nn.Module, training: bool, args: Any, kwargs: Any, mode: FakeTensorMode) -> Any:
    """Returns fakes, of `mode`, of the tensors that `module` returns for these arguments.

    Args:
        module: The child. A twin of it runs.
        training: Whether the twin runs in training mode.
        args: Positional arguments. Tensors are fakes.
        kwargs: Keyword arguments. Tensors are fakes.
        mode: The mode of the fakes in the arguments and in the result.

    Raises:
        ValueError: The child writes to an argument.
        Untraceable: The child has an effect that cannot be undone.
        Exception: Any error that the child raises on random numbers.
    """

    def fake(x: Tensor) -> Tensor:
        copy = mode.from_tensor(x.detach(), static_shapes=True)
        return copy.requires_grad_().clone() if copy.is_floating_point() else copy  # a leaf could not be written to

    parameters = UnwrittenParameters()
    twin: nn.Module = Twins(parameters.share, watched=False).of(module)
    for m in twin.modules():
        m.training = training
    copies: list[tuple[Tensor, int]] = []

    def numbers(x: Tensor) -> Tensor:
        copies.append((copy := _numbers(x), copy._version))
        return copy

    arguments = UnseenCopies(numbers)
    before, active.listener = active.listener, None
    try:
        with (
            unset_fake_temporarily(), torch.no_grad(), without_effects(), restore_parameters(parameters),
        ):  # fmt: skip
            positional, named = arguments.of(args), arguments.of(kwargs)
            held = all_states((positional, *named.values()))
            result = twin(*positional, **named)
    finally:
        active.listener = before
    stored = any(any(changes(before, state_of(c), operator.is_)) for c, before in held)
    if stored or any(x._version != version for x, version in copies):
        raise ValueError("it writes to an argument")
    with torch.enable_grad():
        return Twins(fake, watched=False, deep=True).of(result)


def _numbers(x: Tensor) -> Tensor:
    """Returns random numbers for floating point, and zeros for other dtypes: 0 is a valid index of every table."""
    if not x.is_floating_point():
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    return random_tensor(Form(x.shape, x.dtype, x.device, False), _SEED)
