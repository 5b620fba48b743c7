"""Whether an operation may read the values of its operands when it runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autofuse.torch_private import get_tracing_state, is_fx_symbolic_tracing, is_recorded, peek_interpreter_stack

_PLAIN = (Tensor, nn.Parameter)


def can_look(*operands: Tensor | None) -> bool:
    """Whether the values of `operands` can be read now: plain CPU tensors, no compiler, tracer or transform.

    Reading them then needs no synchronization, and no recorded program depends on what was read.
    """
    return (
        all(t is None or type(t) in _PLAIN and t.is_cpu for t in operands)
        and not torch.compiler.is_compiling()
        and peek_interpreter_stack() is None
        and get_tracing_state() is None
        and not is_fx_symbolic_tracing()
        and not is_recorded()
    )
