"""What a child that cannot run on fakes returns: found by running a twin of it on numbers that are made up.

A mixture of experts sends rows where their numbers say; a kernel may have no fake. Its caller needs to know no more
than ranks and dtypes of the result. Knows nothing of graphs; the child itself is not run.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.trace.ambient_state import preserve_generators
from autofuse.fx.trace.contents import all_states, changes, state_of
from autofuse.fx.trace.external_state import restore_external_state
from autofuse.fx.trace.stand_ins import Form, filled
from autofuse.fx.trace.twin import Twins, active
from autofuse.fx.trace.unseen_copies import UnseenCopies
from autofuse.fx.trace.unwritten_parameters import UnwrittenParameters, unwritten
from autofuse.torch_private import FakeTensorMode, unset_fake_temporarily

_SEED = 0


def probed(module: nn.Module, training: bool, args: Any, kwargs: Any, mode: FakeTensorMode) -> Any:
    """What `module` returns for these fakes, as fakes of `mode`.

    Raises what it raises on made-up numbers, too, and ValueError where it writes to an argument.
    """

    def fake(x: Tensor) -> Tensor:
        made = mode.from_tensor(x.detach(), static_shapes=True)
        return made.requires_grad_().clone() if made.is_floating_point() else made  # no leaf: it may be written to

    parameters = UnwrittenParameters()
    twin: nn.Module = Twins(parameters.shared, watched=False).of(module)
    for m in twin.modules():
        m.training = training
    made: list[tuple[Tensor, int]] = []

    def numbers(x: Tensor) -> Tensor:
        made.append((found := _numbers(x), found._version))
        return found

    arguments = UnseenCopies(numbers)
    before, active.listener = active.listener, None
    try:
        with (
            unset_fake_temporarily(), torch.no_grad(), preserve_generators(), restore_external_state(),
            unwritten(parameters),
        ):  # fmt: skip
            given, named = arguments.of(args), arguments.of(kwargs)
            held = all_states((given, *named.values()))
            result = twin(*given, **named)
    finally:
        active.listener = before
    stored = any(any(changes(before, state_of(c), operator.is_)) for c, before in held)
    if stored or any(x._version != version for x, version in made):
        raise ValueError("it writes to an argument")
    with torch.enable_grad():
        return Twins(fake, watched=False, deep=True).of(result)


def _numbers(x: Tensor) -> Tensor:
    """Random numbers where there are fractions; else zeros, which every table of indices has."""
    if not x.is_floating_point():
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    return filled(Form(x.shape, x.dtype, x.device, False), _SEED)
