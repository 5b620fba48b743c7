"""optimize(model, inputs, profile=True): profiles the model before and after optimizing it, and compares the two."""

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
from autofuse.results.before_after import BeforeAfter, Seconds, with_measured_savings
from autofuse.results.comparison import Comparison
from autofuse.torch_private.nested import tensors_in

ROUNDS = 5  # how many steps of each form are recorded, interleaved


def optimize_and_profile(
    model: nn.Module, example_inputs: Any, profile: bool | Mapping[str, Any], **asked: Any
) -> nn.Module:
    """Implements `profile=` of autofuse.optimize. The other options are passed on.

    Raises:
        ValueError: There are no example inputs.
        TypeError: `profile` has an unknown option.
    """
    inputs = _inputs(example_inputs)
    options = _options(profile)
    pairs = options.pop("pairs", None)
    live.restore(model)  # the "before" side is the original
    live.optimize(model, example_inputs, **asked)
    step = options.get("step") or training_step
    with _functions_that_switch(model, inputs) as sides:
        comparison = _compare(*sides, inputs, step, pairs, bool(options.get("progress", True)))
        now, then = interleaved_layer_seconds(*sides, inputs, step)
        timed = comparison_seconds(comparison)
        before = profiled(sides[0](), inputs, **options, timed=timed[0])
        after = profiled(sides[1](), inputs, **{**options, "probe": False, "trace": None}, timed=timed[1])
    live.keep_profile(model, BeforeAfter(*with_measured_savings(before, after, now, then), comparison))
    return model


def _inputs(given: Any) -> Inputs:
    if given is None:
        raise ValueError("profile=True runs the model, so it needs example inputs: pass them.")
    return tuple(given) if isinstance(given, list) else given


def _options(given: bool | Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `profile`, and pairs.

    Raises:
        TypeError: There is another option. This is checked before the model changes.
    """
    if isinstance(given, bool):
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"profile= must be True or a dict of options of autofuse.profile; got {type(given).__name__}.")
    unknown = [str(name) for name in given if name not in _OPTIONS]
    if unknown:
        raise TypeError(f"profile= has no option {', '.join(unknown)}. The options are: {', '.join(_OPTIONS)}.")
    return dict(given)


_OPTIONS = (
    "pairs",
    *(name for name, parameter in signature(profiled).parameters.items()
      if parameter.kind is Parameter.KEYWORD_ONLY and name != "timed"),
)  # fmt: skip
Side = Callable[[], nn.Module]  # returns the model in its original or its optimized form


def comparison_seconds(comparison: Comparison) -> tuple[Sequence[float], Sequence[float]]:
    """Return the seconds of a comparison's steps, for profiles of both sides; none if it ran with other threads."""
    if comparison.environment.get("threads") != str(torch.get_num_threads()):
        return (), ()
    return comparison.before_seconds, comparison.after_seconds


def interleaved_layer_seconds(
    before: Side, after: Side, inputs: Inputs, step: Step, rounds: int = ROUNDS
) -> tuple[Seconds, Seconds]:
    """Return every layer's own seconds, forward and backward, before and after: medians of interleaved steps."""
    found: tuple[list[Seconds], list[Seconds]] = ([], [])
    for _ in range(rounds):
        for side, recorded in zip((before, after), found, strict=True):
            recorded.append(_record_layers(side(), inputs, step))
    return _median_seconds(found[0]), _median_seconds(found[1])


def _record_layers(model: nn.Module, inputs: Inputs, step: Step) -> Seconds:
    with Recording(ModuleNames({"": unwrap(model)}), device_of(model, inputs)) as recording:
        step(model, inputs)  # recorded but not used: the profiler's first calls are slow
        with recording.step():
            step(model, inputs)
    seconds: dict[str, float] = {}
    for (name, _), work in layers_of(recording.trace).own.items():
        seconds[name] = seconds.get(name, 0.0) + work.seconds
    return seconds


def _median_seconds(recorded: list[Seconds]) -> Seconds:
    names = {name for seconds in recorded for name in seconds}
    return {name: median(seconds.get(name, 0.0) for seconds in recorded) for name in names}


@contextmanager
def _functions_that_switch(model: nn.Module, inputs: Inputs) -> Iterator[tuple[Side, Side]]:
    """Yield two functions that put the one model into its original or its optimized form.

    The forms differ only in the modules' entries, so no copy is needed. After the block, the model is optimized and its
    numbers are as before.
    """
    sides = partial(_put_original_form, model), partial(_put_optimized_form, model, uninstall(model))
    with preserved_optimizers(), preserve_state([model], list(tensors_in(inputs))):
        try:
            yield sides[0], sides[1]
        finally:
            sides[1]()


def _put_original_form(model: nn.Module) -> nn.Module:
    uninstall(model)
    return model


def _put_optimized_form(model: nn.Module, entries: Mapping[nn.Module, Entry]) -> nn.Module:
    reinstall(entries)
    return model


def _compare(
    before: Side, after: Side, inputs: Inputs, step: Step, pairs: int | None, progress: bool
) -> Comparison:  # fmt: skip
    def run(side: Callable[..., Any], given: Any) -> object:
        return step(side(), given)

    return compare(before, after, inputs, run, pairs=pairs, progress=progress)
