"""A module's forward and one example call -> an fx graph, the guards it needs, and how to bind its arguments.

The forward runs once, on a twin (twin.py), under a recorder (recorder.py): no hook fires, no buffer changes, no random
number is drawn, no gradient graph is kept.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from autofuse.fx.trace.ambient_state import AmbientState, preserve_generators, without_autocast_cache
from autofuse.fx.trace.arguments import Arguments
from autofuse.fx.trace.child_calls import ResultSizes
from autofuse.fx.trace.expert_rows import is_rows
from autofuse.fx.trace.external_state import restore_external_state
from autofuse.fx.trace.fold_experts import NotALoop, fold
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.operation_names import keep_checks
from autofuse.fx.trace.own_forward import own_forward
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.recorder import Recorder
from autofuse.fx.trace.result import returned
from autofuse.fx.trace.source_lines import definition_of
from autofuse.fx.trace.twin import Twins, active, plain_class, signature_of
from autofuse.fx.trace.twin_state import as_it_was
from autofuse.fx.trace.user_code import can_watch
from autofuse.fx.trace.values import Untraceable
from autofuse.reasons import forwards
from autofuse.reasons.reason import because
from autofuse.torch_private import FAKE_TENSOR_LOG, FakeTensorMode

ForwardArguments = tuple[tuple[Any, ...], dict[str, Any]]
_LOCK = threading.RLock()
_OF_TORCH_JIT = "failed in the TorchScript interpreter"  # in the message of an error in compiled code


@dataclass
class ForwardTrace:
    """One call of one module, written down."""

    module: nn.Module
    twin: nn.Module
    mode: FakeTensorMode
    graph: fx.Graph
    guards: Guards
    inputs: tuple[str, ...]  # for each placeholder, how it is reached from forward's parameters
    around: AmbientState
    seen_through: frozenset[str]  # children that were entered rather than called
    sizes: dict[fx.Node, tuple[Any, ...]] = field(default_factory=dict)
    results: dict[fx.Node, dict[Path, Any]] = field(default_factory=dict)  # child call -> the tensors in its result
    dropped: frozenset[Path] = frozenset()
    loops: tuple[fx.Node, ...] = ()  # what sorts the rows of a loop over experts that was made one turn


def traced(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], world: Twins, mode: FakeTensorMode,
    dropped: frozenset[Path] = frozenset(),
) -> ForwardTrace:  # fmt: skip
    """Write down `module(*args, **kwargs)`. Tensors among the arguments may be fake or real; what stands at the
    `dropped` paths of the result is left out.

    Raises Untraceable where the forward depends on the numbers in a tensor, changes something that outlives the call,
    or does what a graph does not repeat.
    """
    cls = plain_class(type(module))
    if not can_watch():
        raise Untraceable(because(forwards.PROFILED), passing=True)
    if "forward" in module.__dict__:
        raise Untraceable(because(forwards.REPLACED))
    with _LOCK, preserve_generators(), without_autocast_cache(), quiet(), mode, torch.enable_grad():
        return _traced(module, cls, (args, kwargs), world, mode, dropped)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from logging what fails on fake tensors: it is reported as a reason."""
    log = logging.getLogger(FAKE_TENSOR_LOG)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _traced(
    module: nn.Module,
    cls: type[nn.Module],
    example: ForwardArguments,
    world: Twins,
    mode: FakeTensorMode,
    dropped: frozenset[Path],
) -> ForwardTrace:
    args, kwargs = example
    recorder = Recorder(world.of(module), world, lambda child, a, kw: _sized(child, a, kw, world, mode))
    recorder.guards.equal("self.training", recorder.root.training)
    recorder.guards.add(f"_of_class(self, {recorder.guards.constant(cls)})")
    bound = signature_of(own_forward(cls)).bind(recorder.root, *args, **kwargs)
    bound.apply_defaults()
    arguments = Arguments(recorder)
    arguments.check_identity(own_forward(cls), bound.arguments)
    call = [arguments.parameter(p, bound.arguments[n]) for n, p in list(bound.signature.parameters.items())[1:]]
    before = active.listener
    try:
        with as_it_was(recorder.root):
            active.listener = recorder  # from here on it hears what is read
            with restore_external_state(recorder.stop, lambda: recorder.paused) as outside, recorder:
                recorder.outside, recorder.lies_outside = outside, outside.holds
                result = _run(recorder, own_forward(cls), call)
                recorder.paused = True
                recorder.runs, recorder.definition = False, definition_of(own_forward(cls))
                recorder.finish_watching()
                recorder.check_outside_changes(outside.changes())
                recorder.record_changes()
                returned(recorder, result, dropped)
            recorder.close(outside)
    except Untraceable:
        raise
    except Exception as error:  # the traced code is the user's: anything may be raised
        scripted = isinstance(error, torch.jit.Error) or _OF_TORCH_JIT in str(error)  # it does not run on fakes
        why = because(forwards.CALLS_SCRIPTED) if scripted else because(forwards.RAISED, error=_in_a_line(error))
        raise Untraceable(why) from error
    finally:
        active.listener = before
    arguments.finish()
    loops = _fold(recorder, mode)
    keep_checks(recorder.graph)
    sizes = {h.node: h.sizes for h in recorder.held.values() if h.node is not None}
    sizes = {n: tuple(None if is_rows(s) else s for s in known) for n, known in sizes.items()}
    return ForwardTrace(
        module, recorder.root, mode, recorder.graph, recorder.guards, tuple(arguments.texts), recorder.around,
        frozenset(recorder.seen_through), sizes, recorder.items, dropped, loops,
    )  # fmt: skip


def _fold(recorder: Recorder, mode: FakeTensorMode) -> tuple[fx.Node, ...]:
    """Make one turn of a loop over experts. Raises Untraceable where rows are asked for in any other way."""
    recorder.remove_row_guards()
    try:
        return fold(recorder.graph, recorder.loops, recorder.root, mode)
    except NotALoop as error:
        place = error.node.meta.get("place") if error.node is not None else None
        raise Untraceable(because(forwards.NEEDS_NUMBERS, name="where"), place) from error


def _sized(child: nn.Module, args: Any, kwargs: Any, world: Twins, mode: FakeTensorMode) -> ResultSizes | None:
    """How a child's result is sized, where that follows from its arguments' sizes and itself."""
    try:
        trace = traced(child, args, kwargs, world, mode)
    except Untraceable:
        return None
    (result,) = next(n for n in trace.graph.nodes if n.op == "output").args
    rests_on_sizes = any(".shape" in test and "self" not in test for test in trace.guards.tests)
    if not isinstance(result, fx.Node) or result not in trace.sizes or rests_on_sizes:
        return None
    return ResultSizes(trace.guards, trace.sizes[result], signature_of(own_forward(plain_class(type(child)))))


def _in_a_line(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__} ({said})" if said else type(error).__name__


def _run(recorder: Recorder, forward: Any, call: list[tuple[inspect.Parameter, Any]]) -> Any:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter, value in call:
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional.extend(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            named.update(value)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = value
        else:
            positional.append(value)
    return forward(recorder.root, *positional, **named)
