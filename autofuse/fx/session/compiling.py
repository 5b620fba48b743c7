"""torch.compile as a partner: whether the blocks of a model run compiled, decided by timing whole steps.

Knows blocks, copies and `Module.compile`; what a step is, and how steps are timed, is known elsewhere. What compiles is
torch's own: its results are those of torch.compile, and are not compared in double precision.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from autofuse.display.progress import Tell
from autofuse.fx.install.compiled_code import drop_trial_code
from autofuse.fx.session.model_steps import ModelSteps, undisturbed
from autofuse.fx.session.planner import Planner
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.twin import plain_class
from autofuse.measure.pair_count import JudgedTimings
from autofuse.measure.step_pairs import longest_step, time_steps
from autofuse.measure.timing import Action, seconds_of
from autofuse.results.comparison import Estimate
from autofuse.results.compile_choice import CompileChoice

_COMPILED = "_compiled_call_impl"  # where Module.compile leaves what a call runs; public torch has no way back
_LOG = logging.getLogger("autofuse")


def blocks_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The repeated blocks of `model`, by name: the outermost containers with two children or more of one class.

    The model itself, called "", where nothing is repeated. Blocks are compiled one by one, so that the compiler works
    once for each kind of block and not for each layer.
    """
    found: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        children = list(module.named_children())
        kinds = [plain_class(type(child)) for _, child in children]
        if not isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
            continue
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
    """Why `model` is not compiled by autofuse; "" where it may be."""
    if any(vars(m).get(_COMPILED) is not None for m in model.modules()):
        return "it is compiled already, by Module.compile"
    return ""


def choose(
    model: nn.Module, call: ForwardArguments, planner: Planner, tell: Tell, *, force: bool = False
) -> CompileChoice:
    """Whether the blocks of `model`, called with `call`, are to run compiled: by timing, or because `force` says so.

    Timed are copies, in the mode that the model is in: eager with the fused places, compiled with them, and compiled as
    it was written. What is fastest beyond noise is chosen, and eager where nothing is.
    """
    names = tuple(name for name, _ in blocks_of(model))
    if why := why_not_compiled(model):
        return CompileChoice("eager", reason=why)
    if force:
        return CompileChoice("compiled", names)
    try:
        for _ in tell("compiling and timing", [model], 1):
            return _timed(model, call, planner, names)
    except Exception as error:  # a compiler that is not installed, a forward that it cannot take
        _LOG.debug("the compiled model could not be timed: %s: %s", type(error).__name__, error)
        return CompileChoice("eager", reason=f"compiling it raised {type(error).__name__}")
    return CompileChoice("eager")


def _timed(model: nn.Module, call: ForwardArguments, planner: Planner, names: tuple[str, ...]) -> CompileChoice:
    training = model.training
    with undisturbed(), drop_trial_code(), _copy(model, call, planner, training) as eager:
        own = eager.step(eager.planned)
        seconds_of(own, eager.device)
        if seconds_of(own, eager.device) > longest_step():
            return CompileChoice("eager", reason="a step takes too long to be timed")
        with _compiled_copy(model, call, planner, names, fused=True) as fused:
            gain = time_steps(own, fused, eager.device)
            with _compiled_copy(model, call, planner, names, fused=False) as original:
                other = time_steps(own, original, eager.device)
                better = time_steps(fused, original, eager.device) if _faster(gain) and _faster(other) else None
    choice = CompileChoice("eager", fused=_estimate(gain), original=_estimate(other))
    if _faster(other) and (not _faster(gain) or better is not None and _faster(better)):
        return replace(choice, chosen="compiled original", modules=names)
    if _faster(gain):
        return replace(choice, chosen="compiled", modules=names)
    return replace(choice, reason=f"{choice.fused} of eager, which is no gain beyond noise")


@contextmanager
def _copy(model: nn.Module, call: ForwardArguments, planner: Planner, training: bool) -> Iterator[ModelSteps]:
    with ModelSteps(model, call, planner, training).ready() as steps:
        yield steps


@contextmanager
def _compiled_copy(
    model: nn.Module, call: ForwardArguments, planner: Planner, names: Sequence[str], *, fused: bool
) -> Iterator[Action]:
    """The step of a copy whose blocks are compiled."""
    with _copy(model, call, planner, model.training) as steps:
        for name in names:
            steps.twin.get_submodule(name).compile()
        with steps.kept(steps.planned if fused else ()) as step:
            seconds_of(step, steps.device)  # the compiler works here
            yield step


def _faster(found: JudgedTimings) -> bool:
    return found.judgement.verdict == "confirmed"


def _estimate(found: JudgedTimings) -> Estimate:
    return Estimate(found.effect.ratio, found.effect.interval)


class CompiledModules:
    """The modules of a model that autofuse had compiled, so that they can be as they were again."""

    def __init__(self) -> None:
        self._compiled: list[tuple[weakref.ref[nn.Module], weakref.ref[Any]]] = []  # what runs holds its module

    def compile(self, model: nn.Module, names: Sequence[str]) -> None:
        """Have these modules of `model` run compiled, in place, by `Module.compile`: when they are called first."""
        for name in names:
            module = model.get_submodule(name)
            module.compile()
            self._compiled.append((weakref.ref(module), weakref.ref(vars(module)[_COMPILED])))

    def restore(self) -> None:
        """Have them run as they are written. What somebody else has compiled since stays."""
        for known, made in self._compiled:
            module = known()
            if module is not None and made() is not None and vars(module).get(_COMPILED) is made():
                del module.__dict__[_COMPILED]
        self._compiled.clear()
