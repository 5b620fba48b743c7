"""Decides by timing whole steps whether the blocks of a model run compiled by torch.compile.

The results of torch.compile are not verified in float64.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from autofuse.display.progress import ShowProgress
from autofuse.fx.install.compiled_code import drop_trial_code
from autofuse.fx.session.model_steps import ModelSteps, quiet_steps
from autofuse.fx.session.planner import Planner
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.twin import plain_class
from autofuse.measure.pair_count import JudgedTimings
from autofuse.measure.step_pairs import longest_step, time_steps
from autofuse.measure.timing import Action, seconds_of
from autofuse.results.comparison import Estimate
from autofuse.results.compile_choice import CompileChoice

_COMPILED = "_compiled_call_impl"  # Module.compile stores the compiled call here; torch has no public way to undo it
_LOG = logging.getLogger("autofuse")


def blocks_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The repeated blocks of a model with their names, or the model itself with the name "".

    Repeated blocks are children of one class in the outermost containers. They are compiled one by one, so that the
    compiler runs once for each kind of block and not for each layer.
    """
    found: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        children = list(module.named_children())
        kinds = [plain_class(type(child)) for _, child in children]
        if not isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
            continue
        # A container inside a block is compiled with the block.
        if any(f"{name}.".startswith(f"{outer}.") for outer, _ in found):
            continue
        blocks = [
            (f"{name}.{key}" if name else key, child)
            for (key, child), kind in zip(children, kinds, strict=True)
            if kinds.count(kind) > 1 and next(child.parameters(), None) is not None and next(child.children(), None)
        ]
        found += blocks
    return found or [("", model)]


def why_not_compiled(model: nn.Module) -> str:
    """The reason why autofuse does not compile `model`, or ""."""
    if any(vars(m).get(_COMPILED) is not None for m in model.modules()):
        return "it is compiled already, by Module.compile"
    return ""


def choose_compilation(
    model: nn.Module, call: ForwardArguments, planner: Planner, show_progress: ShowProgress, *, force: bool = False
) -> CompileChoice:
    """Decide whether the blocks of a model run compiled.

    Copies of the model are timed in its current mode: fused and eager, fused and compiled, and compiled without fusion.
    The fastest is chosen. Eager is chosen unless another is faster beyond noise.

    Args:
        model: The model.
        call: The arguments of the timed step.
        planner: The plans for the modules.
        show_progress: Reports progress.
        force: Choose the compiled fused model without timing.

    Returns:
        The choice, with the measured ratios or the reason for eager.
    """
    names = tuple(name for name, _ in blocks_of(model))
    if why := why_not_compiled(model):
        return CompileChoice("eager", reason=why)
    if force:
        return CompileChoice("compiled", names)
    try:
        for _ in show_progress("compiling and timing", [model], 1):
            return _choose_by_timing(model, call, planner, names)
    except Exception as error:  # the compiler is missing, or does not support the forward
        _LOG.debug("the compiled model could not be timed: %s: %s", type(error).__name__, error)
        return CompileChoice("eager", reason=f"compiling it raised {type(error).__name__}")
    return CompileChoice("eager")


def _choose_by_timing(
    model: nn.Module, call: ForwardArguments, planner: Planner, names: tuple[str, ...]
) -> CompileChoice:
    training = model.training
    with quiet_steps(), drop_trial_code(), _model_steps(model, call, planner, training) as eager:
        own = eager.step(eager.planned_modules)
        # The first step is a warm-up.
        seconds_of(own, eager.device)
        if seconds_of(own, eager.device) > longest_step():
            return CompileChoice("eager", reason="a step takes too long to time")
        with _compiled_step(model, call, planner, names, fused=True) as fused:
            gain = time_steps(own, fused, eager.device)
            with _compiled_step(model, call, planner, names, fused=False) as original:
                other = time_steps(own, original, eager.device)
                better = time_steps(fused, original, eager.device) if _is_faster(gain) and _is_faster(other) else None
    choice = CompileChoice("eager", fused=_estimate(gain), original=_estimate(other))
    if _is_faster(other) and (not _is_faster(gain) or better is not None and _is_faster(better)):
        return replace(choice, chosen="compiled original", modules=names)
    if _is_faster(gain):
        return replace(choice, chosen="compiled", modules=names)
    return replace(choice, reason=f"{choice.fused} of eager, which is no gain beyond noise")


@contextmanager
def _model_steps(model: nn.Module, call: ForwardArguments, planner: Planner, training: bool) -> Iterator[ModelSteps]:
    with ModelSteps(model, call, planner, training).prepare() as steps:
        yield steps


@contextmanager
def _compiled_step(
    model: nn.Module, call: ForwardArguments, planner: Planner, names: Sequence[str], *, fused: bool
) -> Iterator[Action]:
    """The step of a copy whose blocks are compiled."""
    with _model_steps(model, call, planner, model.training) as steps:
        for name in names:
            steps.twin.get_submodule(name).compile()
        with steps.running_forwards(steps.planned_modules if fused else ()) as step:
            seconds_of(step, steps.device)  # compiles
            yield step


def _is_faster(found: JudgedTimings) -> bool:
    return found.judgement.verdict == "confirmed"


def _estimate(found: JudgedTimings) -> Estimate:
    return Estimate(found.effect.ratio, found.effect.interval)


class CompiledModules:
    """The modules that autofuse compiled, for a restore."""

    def __init__(self) -> None:
        self._compiled: list[tuple[weakref.ref[nn.Module], weakref.ref[Any]]] = []  # weak: a call holds its module

    def compile(self, model: nn.Module, names: Sequence[str]) -> None:
        """Compile these modules in place by `Module.compile`. The compiler runs at their first call."""
        for name in names:
            module = model.get_submodule(name)
            module.compile()
            self._compiled.append((weakref.ref(module), weakref.ref(vars(module)[_COMPILED])))

    def restore(self) -> None:
        """Remove the compiled calls. A module that other code has compiled since then stays compiled."""
        for known, made in self._compiled:
            module = known()
            if module is not None and made() is not None and vars(module).get(_COMPILED) is made():
                del module.__dict__[_COMPILED]
        self._compiled.clear()
