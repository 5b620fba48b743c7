"""What a model's own code asks for, when autofuse has rewritten it: the count that both sides of a comparison go by.

Fused operations ask for the same products, each by its formula (formulas.py). But code that keeps a product for a
result that nobody reads, or kernels that nobody has a formula for, would make the two counts differ; so the original
code itself is counted. Knows how rewrites come off and on again, and fakes; must not know what is counted how.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

from torch import Tensor, nn

from autofuse.fx.install.dispatch import is_installed, reinstall, uninstall
from autofuse.fx.trace.tracer import mute_fake_tensor_log
from autofuse.measure.step import Step, training_step
from autofuse.profiling.live.counting import Counting
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.workload import Workload
from autofuse.results.profile import Flops
from autofuse.torch_private import FakeTensorMode, pytree
from autofuse.torch_private.nested import tensors_in


def is_rewritten(models: Iterable[nn.Module]) -> bool:
    """Whether any module of them runs a forward of autofuse's."""
    return any(is_installed(module) for model in models for module in model.modules())


@contextmanager
def as_written(models: Iterable[nn.Module]) -> Iterator[None]:
    """In the block the models run their own code; afterwards every module runs what it ran before."""
    entries = [uninstall(model) for model in models]
    try:
        yield
    finally:
        for taken in entries:
            reinstall(taken)


def model_flops_of_original(model: nn.Module, inputs: Any, step: Step = training_step) -> Flops:
    """What a step of `model` counts with autofuse's rewrites taken off, and put back afterwards.

    The default step runs on fake tensors, which costs neither time nor memory; any other, or one that has to look at
    values, runs once for real, with all that a step does to parameters, gradients and random state.
    """
    with as_written((model,)):
        if step is training_step:
            try:
                return _counted_on_fakes(model, inputs)
            except Exception:  # whatever a model does that fakes cannot, it can for real
                pass
        return _counted(model, inputs, step)


def of_workload(workload: Workload) -> Flops:
    """The same for a workload's step."""
    run = workload.run
    if isinstance(run, partial) and run.func is training_step:
        return model_flops_of_original(run.args[0], workload.inputs)
    with as_written(workload.models.values()), Counting(workload.names) as counting:
        workload.step()
    return counting.flops


def _counted(model: nn.Module, inputs: Any, step: Step) -> Flops:
    with Counting(ModuleNames({"": model})) as counting:
        step(model, inputs)
    return counting.flops


def _counted_on_fakes(model: nn.Module, inputs: Any) -> Flops:
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    held = [*model.parameters(), *model.buffers()]
    held += [t for module in model.modules() for t in tensors_in(list(vars(module).values()))]
    memo: dict[int, Any] = {id(t): fakes.from_tensor(t) for t in held}
    with mute_fake_tensor_log(), fakes:
        double = deepcopy(model, memo)
        given = pytree.tree_map_only(Tensor, fakes.from_tensor, inputs)
        return _counted(double, given, training_step)
