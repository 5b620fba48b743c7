"""Handles errors of a rewritten forward that the module's own might not raise: the original runs that call.

Only errors of operations are handled. An error of a child module is the user's own. A forward that writes to something
that exists after the call must not run twice.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from autofuse.fx.trace import contents
from autofuse.torch_private import CALLERS_OF_CHECKPOINTS

_CHECKPOINTING = "torch.utils.checkpoint"  # raises an exception to stop a recomputation when it has all tensors
# Modules with the frames between a forward and a function that it checkpoints.
_CALLERS = frozenset({_CHECKPOINTING, *CALLERS_OF_CHECKPOINTS, "autofuse.fx.install.checkpointed"})
_IN_PLACE = frozenset({"setitem", "setattr", "delitem", "delattr", "__setitem__", "__setattr__"})


def may_run_again(graph: fx.Graph) -> bool:
    """Whether the original may run after a part of the graph has run: true if the graph writes to nothing."""
    return not any(_writes(node) for node in graph.nodes)


def _writes(node: fx.Node) -> bool:
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in _IN_PLACE or getattr(node.target, "__module__", "") == contents.__name__


def is_of_an_operation(error: Exception, run: Callable[..., Any]) -> bool:
    """Whether an operation of torch or autofuse that the generated function `run` calls has raised `error`."""
    if isinstance(error, torch.OutOfMemoryError) or type(error).__module__ == _CHECKPOINTING:
        return False
    step = error.__traceback__
    while step is not None and step.tb_frame.f_code is not run.__code__:
        step = step.tb_next
    while step is not None and step.tb_next is not None and _runs_a_part(step.tb_next.tb_frame):
        step = step.tb_next
    return step is not None and (step.tb_next is None or _is_ours(step.tb_next.tb_frame))


def _runs_a_part(frame: types.FrameType) -> bool:
    """Whether a frame is that of a submodule's narrow forward, of a checkpointed function, or of torch's checkpoint."""
    generated = frame.f_code.co_filename.startswith("<autofuse")
    return generated or str(frame.f_globals.get("__name__")) in _CALLERS


def _is_ours(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(("autofuse.ops", "autofuse.kernels", "torch.nn.functional"))
