"""A module's forward and one example call -> an fx graph, the guards it needs, and how to bind its arguments.

The forward runs once, on a twin (twin.py), under a recorder (recorder.py): no hook fires, no buffer changes, no random
number is drawn, no gradient graph is kept.
"""

from __future__ import annotations

import copy
import inspect
import logging
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from autofuse.fx.trace import foreign_objects as foreign
from autofuse.fx.trace.ambient_state import AmbientState, undisturbed_randomness, without_cached_casts
from autofuse.fx.trace.attribute_reads import guard_path
from autofuse.fx.trace.child_calls import ResultSizes
from autofuse.fx.trace.external_state import unchanged_outside
from autofuse.fx.trace.guards import Guards
from autofuse.fx.trace.own_forward import own_forward
from autofuse.fx.trace.paths import Path, is_record
from autofuse.fx.trace.recorder import Recorder
from autofuse.fx.trace.result import returned
from autofuse.fx.trace.source_lines import definition_of
from autofuse.fx.trace.twin import SCALARS, Twins, active, original_class, plain_class, signature_of
from autofuse.fx.trace.twin_state import as_it_was
from autofuse.fx.trace.values import Held, Untraceable
from autofuse.reasons import forwards
from autofuse.reasons.reason import because
from autofuse.torch_private import FAKE_TENSOR_LOG, FakeTensor, FakeTensorMode, fake_mode

ForwardArguments = tuple[tuple[Any, ...], dict[str, Any]]
_LOCK = threading.RLock()


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
    if "forward" in module.__dict__:
        raise Untraceable(because(forwards.REPLACED))
    with _LOCK, undisturbed_randomness(), without_cached_casts(), quiet(), mode, torch.enable_grad():
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
    bound = signature_of(own_forward(cls)).bind(recorder.root, *args, **kwargs)
    bound.apply_defaults()
    binder = _Binder(recorder)
    call = [binder.parameter(p, bound.arguments[n]) for n, p in list(bound.signature.parameters.items())[1:]]
    before, active.listener = active.listener, recorder
    try:
        with as_it_was(recorder.root), recorder, unchanged_outside(module) as outside:
            result = _run(recorder, own_forward(cls), call)
            recorder.runs, recorder.definition = False, definition_of(own_forward(cls))
            recorder.finish_watching()
            recorder.check_kept(outside.changes())
            returned(recorder, result, dropped)
    except Untraceable:
        raise
    except Exception as error:  # the traced code is the user's: anything may be raised
        raise Untraceable(because(forwards.RAISED, error=_in_a_line(error))) from error
    finally:
        active.listener = before
    binder.finish()
    sizes = {h.node: h.sizes for h in recorder.held.values() if h.node is not None}
    return ForwardTrace(
        module, recorder.root, mode, recorder.graph, recorder.guards, tuple(binder.texts), recorder.around,
        frozenset(recorder.seen_through), sizes, recorder.items, dropped,
    )  # fmt: skip


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


class _Binder:
    """Turns the arguments of one call into placeholders and guards."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.guards = recorder, recorder.guards
        self.texts: list[str] = []
        self.tensors: list[tuple[str, Tensor]] = []

    def parameter(self, parameter: inspect.Parameter, value: Any) -> tuple[inspect.Parameter, Any]:
        if parameter.kind is parameter.VAR_KEYWORD:
            self.guards.add(f"{parameter.name}.keys() == {set(value) or '_EMPTY'}")
            return parameter, {k: self.value(v, f"{parameter.name}[{k!r}]") for k, v in value.items()}
        if parameter.kind is parameter.VAR_POSITIONAL:
            self.guards.add(f"len({parameter.name}) == {len(value)}")
            return parameter, [self.value(v, f"{parameter.name}[{i}]") for i, v in enumerate(value)]
        return parameter, self.value(value, parameter.name)

    def value(self, value: Any, text: str) -> Any:
        if isinstance(value, Tensor):
            return self.tensor(value, text)
        if isinstance(value, SCALARS):
            self.guards.equal(text, value)
            return value
        if isinstance(value, torch.SymInt):
            raise Untraceable(because(forwards.SYMBOLIC_SIZE, name=text))
        if isinstance(value, nn.Module):
            return self.module(value, text)
        if isinstance(value, (types.FunctionType, type)):
            self.guards.same(text, value)
            return value
        if isinstance(value, (list, tuple, dict)):
            return self.container(value, text)
        if is_record(value):
            self.guards.same(f"type({text})", original_class(type(value)))
            made = copy.copy(value)
            vars(made).update({k: self.value(v, f"{text}.{k}") for k, v in vars(value).items()})
            return made
        node = self.placeholder(text)
        node.meta["v"] = real = Twins(self._fake, deep=True).of(value)
        self.guards.same(f"type({text})", original_class(type(value)))
        return foreign.ForeignObject(self.recorder, node, real, text)

    def module(self, value: nn.Module, text: str) -> nn.Module:
        """A module of the same class does as well: it is called, not read."""
        self.guards.same(f"type({text})", plain_class(original_class(type(value))))
        return self.recorder.handed_in(value, self.placeholder(text), text)

    def container(self, value: Any, text: str) -> Any:
        self.guards.same(f"type({text})", original_class(type(value)))
        if isinstance(value, dict):
            self.guards.add(f"{text}.keys() == {set(value) or '_EMPTY'}")
            items = {k: self.value(v, f"{text}[{k!r}]") for k, v in value.items()}
            return items if type(value) is dict else type(value)(items)
        self.guards.add(f"len({text}) == {len(value)}")
        parts = [self.value(v, f"{text}[{i}]") for i, v in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)

    def tensor(self, value: Tensor, text: str) -> Tensor:
        fake = self._fake(value)
        node = self.placeholder(text)
        node.meta["v"] = fake
        sizes = tuple(f"{text}.shape[{d}]" for d in range(fake.dim()))
        self.recorder.held[id(fake)] = Held(fake, lambda: node, sizes, text, node)
        self.guards.add(f"isinstance({text}, _Tensor)")
        self.guards.same(f"{text}.dtype", fake.dtype)
        self.guards.add(f"{text}.ndim == {fake.dim()}")
        self.tensors.append((text, fake))
        return fake

    def _fake(self, x: Tensor) -> Tensor:
        """A fake of its own for each argument, so that the same tensor passed twice is two arguments."""
        mode = fake_mode()
        assert isinstance(mode, FakeTensorMode)
        source = x if isinstance(x, FakeTensor) else mode.from_tensor(x.detach(), static_shapes=True)
        with torch.no_grad():
            fake = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device=source.device)
        # no leaf: forward may write to an activation in place
        return fake.requires_grad_().clone() if x.requires_grad and x.dtype.is_floating_point else fake

    def placeholder(self, text: str) -> fx.Node:
        node = self.recorder.graph.placeholder(f"in{len(self.texts)}")
        self.texts.append(text)
        return node

    def finish(self) -> None:
        """Guards on what all tensors share."""
        if self.recorder.reads_dtype:
            self.parameter_dtypes()
        if self.tensors:
            text, first = self.tensors[0]
            on_cpu = first.device == torch.device("cpu")
            self.guards.add(f"{text}.is_cpu") if on_cpu else self.guards.equal(f"{text}.device", first.device)
        for text, fake in self.tensors if self.recorder.exact else ():
            self.guards.add(f"{text}.shape == {tuple(fake.shape)}")

    def parameter_dtypes(self) -> None:
        """A dtype that forward asked for may follow from the parameters'."""
        for path, module in self.recorder.root.named_modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.dtype.is_floating_point:
                    self.guards.same(f'_held({guard_path(path)}, "_parameters", "{name}").dtype', parameter.dtype)
                    return
