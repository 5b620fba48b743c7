"""Times every operator of a step on the calling thread, by the module and the phase that run it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import nn

from autofuse.measure.step import training_step
from autofuse.profiling.live.module_calls import ModuleNames, around_calls
from autofuse.profiling.live.operator_owner import Running
from autofuse.torch_private import TorchDispatchMode

OwnSeconds = Mapping[tuple[str, str], float]


class OperatorClock(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums the seconds for which the calling thread had a core, operator by operator.

    Guards let modes of this package pass, so an optimized model runs its fused forwards under it. With one torch
    thread the sums cover all work of a CPU step, and other programs on the machine do not count.

    Attributes:
        seconds: by fully qualified name of the module and phase, "forward" or "backward".
    """

    def __init__(self, running: Running) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running = running
        self.seconds: dict[tuple[str, str], float] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.thread_time()
        result = function(*args, **(kwargs or {}))
        seconds = time.thread_time() - start
        if getattr(function, "namespace", "") != "prim":
            owner = self.running.now()
            key = owner.fqn, owner.phase
            self.seconds[key] = self.seconds.get(key, 0.0) + seconds
        return result


def time_operators(model: nn.Module, inputs: Any) -> OwnSeconds:
    """The own seconds of every module in one training step, by name and phase.

    Args:
        model: runs on a CPU. Its gradients are cleared at the end.
        inputs: as `autofuse.compare` takes them.
    """
    running = Running()
    clock = OperatorClock(running)
    with around_calls(ModuleNames({"": model}), running.called), clock:
        training_step(model, inputs)
    return clock.seconds
