"""Traces a module's forward for one example call: an fx graph, the guards that it needs, and how to bind its arguments.

The forward runs once, on a twin (twin.py), under a recorder (recorder.py). No hook runs, no buffer changes, no random
number is drawn, and no autograd graph is kept.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from autofuse.fx.trace.ambient_state import AmbientState, preserve_generators, without_autocast_cache
from autofuse.fx.trace.arguments import Arguments
from autofuse.fx.trace.checkpoints import record_checkpoints
from autofuse.fx.trace.child_calls import ResultSizes
from autofuse.fx.trace.coroutines import close_coroutines
from autofuse.fx.trace.empty_experts import check_empty_experts
from autofuse.fx.trace.expert_rows import is_rows
from autofuse.fx.trace.external_state import restore_external_state
from autofuse.fx.trace.fold_experts import NotALoop, fold
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.object_uses import ObjectUses
from autofuse.fx.trace.open_integers import OpenIntegers
from autofuse.fx.trace.operation_names import keep_checks
from autofuse.fx.trace.own_forward import own_forward
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.quiet_log import mute_fake_tensor_log
from autofuse.fx.trace.recorder import Recorder
from autofuse.fx.trace.result import add_output
from autofuse.fx.trace.source_lines import definition_of
from autofuse.fx.trace.twin import IntegersRead, Twins, active, integers_noted, note_integers, plain_class, signature_of
from autofuse.fx.trace.twin_state import restore_on_exit
from autofuse.fx.trace.user_code import can_watch
from autofuse.fx.trace.values import Untraceable
from autofuse.reasons import forwards
from autofuse.reasons.reason import because
from autofuse.torch_private import FakeTensorMode

ForwardArguments = tuple[tuple[Any, ...], dict[str, Any]]
_LOCK = threading.RLock()
_OF_TORCH_JIT = "failed in the TorchScript interpreter"  # in the message of an error in compiled code


@dataclass
class ForwardTrace:
    """The trace of one call of one module.

    Attributes:
        module: The user's module.
        twin: The twin that ran.
        mode: The mode of the twin's fake tensors.
        graph: What the forward did.
        guards: What the graph assumes.
        inputs: For each placeholder, the text that reads it from forward's parameters.
        around: The ambient state in which the forward ran.
        entered_children: Children that the trace entered instead of calling.
        sizes: The origins of the sizes of each node's tensor.
        results: For each call of a child, the tensors in its result.
        dropped: Paths of the result that the graph does not return.
        loops: The nodes that sort the rows of a loop over experts, of which the graph has one turn.
        called: How often each child was called.
        integers_of_children: For each child, the integers of twins that its calls read.
        object_uses: The uses of objects among the arguments.
    """

    module: nn.Module
    twin: nn.Module
    mode: FakeTensorMode
    graph: fx.Graph
    guards: Guards
    inputs: tuple[str, ...]
    around: AmbientState
    entered_children: frozenset[str]
    sizes: dict[fx.Node, tuple[Any, ...]] = field(default_factory=dict)
    results: dict[fx.Node, dict[Path, Any]] = field(default_factory=dict)
    dropped: frozenset[Path] = frozenset()
    loops: tuple[fx.Node, ...] = ()
    called: Mapping[str, int] = field(default_factory=dict)
    integers_of_children: Mapping[str, IntegersRead] = field(default_factory=dict)
    object_uses: ObjectUses = field(default_factory=ObjectUses)


def trace_forward(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], world: Twins, mode: FakeTensorMode,
    dropped: frozenset[Path] = frozenset(), open_integers: frozenset[str] = frozenset(),
) -> ForwardTrace:  # fmt: skip
    """Traces `module(*args, **kwargs)`.

    Args:
        module: The module to trace. A twin of it runs.
        args: Positional arguments. Tensors may be fake or real.
        kwargs: Keyword arguments. Tensors may be fake or real.
        world: Makes the twins.
        mode: The mode of the twins' fake tensors.
        dropped: Paths of the result that the graph does not return.
        open_integers: Names of integers of the module. If forward only passes them on, the trace does not depend on
            their numbers, and has no guard on these.

    Raises:
        Untraceable: The forward depends on the numbers in a tensor, changes something that outlives the call, or does
            something that a graph does not repeat.
    """
    cls = plain_class(type(module))
    if not can_watch():
        raise Untraceable(because(forwards.PROFILED), passing=True)
    if "forward" in module.__dict__:
        raise Untraceable(because(forwards.REPLACED))
    with _LOCK, preserve_generators(), without_autocast_cache(), mute_fake_tensor_log(), mode, torch.enable_grad():
        return _trace(module, cls, (args, kwargs), world, mode, dropped, open_integers)


def _trace(
    module: nn.Module,
    cls: type[nn.Module],
    example: ForwardArguments,
    world: Twins,
    mode: FakeTensorMode,
    dropped: frozenset[Path],
    open_integers: frozenset[str],
) -> ForwardTrace:
    recorder, arguments = _record_open(module, cls, example, world, mode, dropped, open_integers)
    loops = _fold(recorder, mode, lambda: _record(module, cls, example, world, mode, dropped, alternates=True)[0])
    keep_checks(recorder.graph)
    sizes = {h.node: h.sizes for h in recorder.held.values() if h.node is not None}
    sizes = {n: tuple(None if is_rows(s) else s for s in known) for n, known in sizes.items()}
    return ForwardTrace(
        module, recorder.root, mode, recorder.graph, recorder.guards, tuple(arguments.texts), recorder.around,
        frozenset(recorder.entered_children), sizes, recorder.items, dropped, loops, recorder.called,
        recorder.integers_of_children, recorder.object_uses,
    )  # fmt: skip


def _record_open(
    module: nn.Module, cls: type[nn.Module], example: ForwardArguments, world: Twins, mode: FakeTensorMode,
    dropped: frozenset[Path], names: frozenset[str],
) -> tuple[Recorder, Arguments]:  # fmt: skip
    """Runs a forward and records it without the numbers of these attributes; with them if forward needs them."""
    opened, read = OpenIntegers(names), IntegersRead()
    if names:
        try:
            with integers_noted(read):
                recorded = _record(module, cls, example, world, mode, dropped, opened=opened)
            if not opened.may_be_noticed(recorded[0].outside.ran):
                note_integers(read)
                return recorded
        except Untraceable:
            if not opened.read:
                raise
    return _record(module, cls, example, world, mode, dropped)


def _record(
    module: nn.Module, cls: type[nn.Module], example: ForwardArguments, world: Twins, mode: FakeTensorMode,
    dropped: frozenset[Path], alternates: bool = False, opened: OpenIntegers | None = None,
) -> tuple[Recorder, Arguments]:  # fmt: skip
    """Runs a forward and records it; with `alternates`, as if every other expert of a loop had no rows."""
    args, kwargs = example
    recorder = Recorder(world.of(module), world, lambda child, a, kw: _child_result_sizes(child, a, kw, world, mode))
    recorder.alternates = alternates
    recorder.guards.equal("self.training", recorder.root.training)
    recorder.guards.add(f"_of_class(self, {recorder.guards.constant(cls)})")
    bound = signature_of(own_forward(cls)).bind(recorder.root, *args, **kwargs)
    bound.apply_defaults()
    arguments = Arguments(recorder)
    arguments.check_identity(own_forward(cls), bound.arguments)
    call = [arguments.parameter(p, bound.arguments[n]) for n, p in list(bound.signature.parameters.items())[1:]]
    listener_before = active.listener
    try:
        with restore_on_exit(recorder.root):
            active.listener = recorder  # from here on, reads are reported
            with restore_external_state(recorder.stop, lambda: recorder.paused) as outside, recorder:
                recorder.outside, recorder.lies_outside = outside, outside.holds
                recorder.open = opened or recorder.open
                with record_checkpoints(recorder), recorder.open.replaced(recorder.root):
                    result = _run(recorder, own_forward(cls), call)
                close_coroutines(result)
                recorder.check_surroundings()
                recorder.paused = True
                recorder.runs, recorder.definition = False, definition_of(own_forward(cls))
                recorder.finish_watching()
                recorder.check_outside_changes(outside.changes())
                recorder.record_changes()
                add_output(recorder, result, dropped)
            recorder.close(outside)
    except Untraceable:
        note_integers(recorder.all_integers_of_children())
        raise
    except Exception as error:  # user code may raise anything
        scripted = isinstance(error, torch.jit.Error) or _OF_TORCH_JIT in str(error)  # it does not run on fakes
        note_integers(recorder.all_integers_of_children())
        why = because(forwards.CALLS_SCRIPTED) if scripted else because(forwards.RAISED, error=_one_line_text(error))
        raise Untraceable(why) from error
    finally:
        active.listener = listener_before
    arguments.finish()
    return recorder, arguments


def _fold(recorder: Recorder, mode: FakeTensorMode, record_alternately: Callable[[], Recorder]) -> tuple[fx.Node, ...]:
    """Replaces loops over experts by one turn.

    Raises:
        Untraceable: The forward uses the selected rows in another way.
    """
    recorder.remove_row_guards()
    try:
        if recorder.loops.tests_rows:
            check_empty_experts(recorder.graph, recorder.loops, record_alternately().graph)
        return fold(recorder.graph, recorder.loops, recorder.root, mode)
    except NotALoop as error:
        place = error.node.meta.get("place") if error.node is not None else None
        raise Untraceable(because(forwards.NEEDS_NUMBERS, name="where"), place) from error


def _child_result_sizes(
    child: nn.Module, args: Any, kwargs: Any, world: Twins, mode: FakeTensorMode
) -> ResultSizes | None:
    """Returns the sizes of a child's result if they follow from the child and the sizes of its arguments, else None."""
    try:
        trace = trace_forward(child, args, kwargs, world, mode)
    except Untraceable:
        return None
    for read in trace.integers_of_children.values():
        note_integers(read)
    (result,) = next(n for n in trace.graph.nodes if n.op == "output").args
    depends_on_sizes = any(".shape" in test and "self" not in test for test in trace.guards.tests)
    if not isinstance(result, fx.Node) or result not in trace.sizes or depends_on_sizes:
        return None
    return ResultSizes(trace.guards, trace.sizes[result], signature_of(own_forward(plain_class(type(child)))))


def _one_line_text(error: Exception) -> str:
    """Returns the type of an error and the first line of its message."""
    first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__} ({first_line})" if first_line else type(error).__name__


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
