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

_CHECKPOINTING = "torch.utils.checkpoint"  # raises an exception to stop a recomputation when it has all tensors
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
    while step is not None and step.tb_next is not None and _is_generated(step.tb_next.tb_frame):
        step = step.tb_next  # a submodule's narrow forward
    return step is not None and (step.tb_next is None or _is_ours(step.tb_next.tb_frame))


def _is_generated(frame: types.FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<autofuse")


def _is_ours(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(("autofuse.ops", "autofuse.kernels", "torch.nn.functional"))
