"""Finds out whether a model's steps on a GPU wait for Python's launches or for the GPU.

This decides how kernels are compared (kernels/candidate_timing.py) and from which size our kernels are used
(kernels/gpu_thresholds.py): if steps wait for the GPU, only the GPU's time counts.
"""

from __future__ import annotations

import logging

from torch import nn

from autofuse.fx.session.memory_room import step_bytes, why_no_room
from autofuse.fx.session.model_steps import ModelSteps, quiet_steps
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.whole_step import LONGEST
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.kernels.policy import settings, use
from autofuse.measure.compare import device_of
from autofuse.measure.created_bytes import BytesByDevice
from autofuse.measure.device_timing import busy_share

_BUSY, _IDLE = 0.9, 0.6  # of a step's time, in which a kernel runs
_LOG = logging.getLogger("autofuse")
_found: list[bool | None] = [None]  # what an earlier call set


def note_launch_regime(model: nn.Module, call: ForwardArguments, planner: Planner) -> None:
    """Set `launch_bound` for this process from a step of the original model on a GPU.

    It stays as it is on other devices, if the user set it, and if the step does not run.

    Args:
        model: The model. A copy of it runs.
        call: The arguments of the step.
        planner: The plans.
    """
    device = device_of(model, ())
    if device.type != "cuda" or settings().launch_bound is not _found[0]:
        return
    created = planner.created_bytes.get(model, BytesByDevice())
    if planner.sharded or model not in planner.calls[model.training] or why_no_room(step_bytes(model, created)):
        return
    try:
        with quiet_steps(), ModelSteps(model, call, planner, model.training).prepare(LONGEST) as steps:
            share = busy_share(steps.step(()), device)
    except Exception as error:  # the step is user code
        _LOG.debug("a step could not be profiled: %s: %s", type(error).__name__, error)
        return
    _found[0] = launch_bound_by(share)
    use(launch_bound=_found[0])


def launch_bound_by(share: float | None) -> bool | None:
    """Whether steps wait for launches, if a kernel runs for `share` of their time; None if that is not clear."""
    if share is None or _IDLE <= share < _BUSY:
        return None
    return share < _IDLE
