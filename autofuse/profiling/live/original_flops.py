"""Counts the FLOPs of a model's own code if autofuse has rewritten it. Both sides of a comparison use this count.

Fused operations count as the same products (formulas.py). But the counts would differ if the original keeps a product
whose result is not used, or if a kernel has no formula. So the original code itself is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

from torch import Tensor, nn

from autofuse.fx.install.dispatch import is_installed, reinstall, uninstall
from autofuse.fx.trace.quiet_log import mute_fake_tensor_log
from autofuse.measure.step import Step, training_step
from autofuse.profiling.live.counting import Counting
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.workload import Workload
from autofuse.results.profile import Flops
from autofuse.torch_private import FakeTensorMode, pytree
from autofuse.torch_private.nested import tensors_in


def is_rewritten(models: Iterable[nn.Module]) -> bool:
    """Whether a module of these models runs a forward of autofuse."""
    return any(is_installed(module) for model in models for module in model.modules())


@contextmanager
def as_written(models: Iterable[nn.Module]) -> Iterator[None]:
    """In the block, the models run their own code. Afterwards, every module runs what it ran before."""
    entries = [uninstall(model) for model in models]
    try:
        yield
    finally:
        for entry in entries:
            reinstall(entry)


def model_flops_of_original(model: nn.Module, inputs: Any, step: Step = training_step) -> Flops:
    """Return the count of a step of `model` with autofuse's rewrites removed, and restore them afterwards.

    The default step runs on fake tensors, which takes neither time nor memory. Another step, or one that reads values,
    runs once for real, with all its effects on parameters, gradients and random state.
    """
    with as_written((model,)):
        if step is training_step:
            try:
                return _count_on_fakes(model, inputs)
            except Exception:  # the model cannot run on fakes, so run it for real
                pass
        return _count(model, inputs, step)


def original_flops_of_workload(workload: Workload) -> Flops:
    """Return the same for a workload's step."""
    run = workload.run
    if isinstance(run, partial) and run.func is training_step:
        return model_flops_of_original(run.args[0], workload.inputs)
    with as_written(workload.models.values()), Counting(workload.names) as counting:
        workload.step()
    return counting.flops


def _count(model: nn.Module, inputs: Any, step: Step) -> Flops:
    with Counting(ModuleNames({"": model})) as counting:
        step(model, inputs)
    return counting.flops


def _count_on_fakes(model: nn.Module, inputs: Any) -> Flops:
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [t for module in model.modules() for t in tensors_in(list(vars(module).values()))]
    memo: dict[int, Any] = {id(t): fakes.from_tensor(t) for t in tensors}
    with mute_fake_tensor_log(), fakes:
        copy = deepcopy(model, memo)
        fake_inputs = pytree.tree_map_only(Tensor, fakes.from_tensor, inputs)
        return _count(copy, fake_inputs, training_step)
