"""optimize(model, inputs, profile=True): before, swap and after in one go. It puts the parts together, no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import Parameter, signature
from statistics import median
from typing import Any

import torch
from torch import nn

from autofuse.fx.install.dispatch import Entry, reinstall, uninstall
from autofuse.fx.session import optimize as live
from autofuse.fx.trace.wrappers import unwrap
from autofuse.measure.compare import compare, device_of
from autofuse.measure.preserved_state import preserve_state
from autofuse.measure.step import Inputs, Step, training_step
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.optimizers import preserved_optimizers
from autofuse.profiling.live.profile import profile as profiled
from autofuse.profiling.live.recording import Recording
from autofuse.profiling.trace.layers import layers_of
from autofuse.results.before_after import BeforeAfter, Seconds, with_what_was_measured
from autofuse.results.comparison import Comparison
from autofuse.torch_private.nested import tensors_in

ROUNDS = 5  # of steps recorded in turns


def optimize_and_profile(
    model: nn.Module, example_inputs: Any, profile: bool | Mapping[str, Any], **asked: Any
) -> nn.Module:
    """`optimize(model, example_inputs, profile=profile, **asked)`: what autofuse.optimize does where it is profiled.

    Raises ValueError without example inputs, and TypeError for options that `profile` does not have.
    """
    inputs = _inputs(example_inputs)
    options = _options(profile)
    pairs = options.pop("pairs", None)
    live.restore(model)  # what stands before is the original
    live.optimize(model, example_inputs, **asked)
    step = options.get("step") or training_step
    with _in_either_form(model, inputs) as sides:
        comparison = _compared(*sides, inputs, step, pairs, bool(options.get("progress", True)))
        now, then = in_turns(*sides, inputs, step)
        timed = timed_in_turns(comparison)
        before = profiled(sides[0](), inputs, **options, timed=timed[0])
        after = profiled(sides[1](), inputs, **{**options, "probe": False, "trace": None}, timed=timed[1])
    live.keep_profile(model, BeforeAfter(*with_what_was_measured(before, after, now, then), comparison))
    return model


def _inputs(given: Any) -> Inputs:
    if given is None:
        raise ValueError("profile=True runs the model, and no example inputs were given to run it with: pass them.")
    return tuple(given) if isinstance(given, list) else given


def _options(given: bool | Mapping[str, Any]) -> dict[str, Any]:
    """Those of `profile`, and pairs. Raises TypeError for others, before anything is done to the model."""
    if isinstance(given, bool):
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"profile= is True, or a dict of options of autofuse.profile; it was a {type(given).__name__}.")
    unknown = [str(name) for name in given if name not in _OPTIONS]
    if unknown:
        raise TypeError(f"profile= has no option {', '.join(unknown)}. There are: {', '.join(_OPTIONS)}.")
    return dict(given)


_OPTIONS = (
    "pairs",
    *(name for name, parameter in signature(profiled).parameters.items()
      if parameter.kind is Parameter.KEYWORD_ONLY and name != "timed"),
)  # fmt: skip
Side = Callable[[], nn.Module]  # the model as it was, or as it is now


def timed_in_turns(comparison: Comparison) -> tuple[Sequence[float], Sequence[float]]:
    """The seconds of a comparison's steps, for profiles of both sides; none where it ran with fewer threads."""
    if comparison.environment.get("threads") != str(torch.get_num_threads()):
        return (), ()
    return comparison.before_seconds, comparison.after_seconds


def in_turns(before: Side, after: Side, inputs: Inputs, step: Step, rounds: int = ROUNDS) -> tuple[Seconds, Seconds]:
    """Seconds of every layer's own, forward and backward, before and after: the median of steps recorded in turns."""
    found: tuple[list[Seconds], list[Seconds]] = ([], [])
    for _ in range(rounds):
        for side, recorded in zip((before, after), found, strict=True):
            recorded.append(_recorded(side(), inputs, step))
    return _medians(found[0]), _medians(found[1])


def _recorded(model: nn.Module, inputs: Inputs, step: Step) -> Seconds:
    with Recording(ModuleNames({"": unwrap(model)}), device_of(model, inputs)) as recording:
        step(model, inputs)  # recorded, and not looked at: the profiler's own first calls are slow
        with recording.step():
            step(model, inputs)
    seconds: dict[str, float] = {}
    for (name, _), work in layers_of(recording.trace).own.items():
        seconds[name] = seconds.get(name, 0.0) + work.seconds
    return seconds


def _medians(recorded: list[Seconds]) -> Seconds:
    names = {name for seconds in recorded for name in seconds}
    return {name: median(seconds.get(name, 0.0) for seconds in recorded) for name in names}


@contextmanager
def _in_either_form(model: nn.Module, inputs: Inputs) -> Iterator[tuple[Side, Side]]:
    """The one model, which takes the one form or the other first: modules differ by their entries in nothing else, so
    there is no copy of it. Behind the block it is optimized, and its numbers are as before."""
    sides = partial(_original, model), partial(_optimized, model, uninstall(model))
    with preserved_optimizers(), preserve_state([model], list(tensors_in(inputs))):
        try:
            yield sides[0], sides[1]
        finally:
            sides[1]()


def _original(model: nn.Module) -> nn.Module:
    uninstall(model)
    return model


def _optimized(model: nn.Module, entries: Mapping[nn.Module, Entry]) -> nn.Module:
    reinstall(entries)
    return model


def _compared(
    before: Side, after: Side, inputs: Inputs, step: Step, pairs: int | None, progress: bool
) -> Comparison:  # fmt: skip
    def run(side: Callable[..., Any], given: Any) -> object:
        return step(side(), given)

    return compare(before, after, inputs, run, pairs=pairs, progress=progress)
