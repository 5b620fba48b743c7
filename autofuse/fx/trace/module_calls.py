"""How the modules of a model are called when the model is: found by running a twin of it, not the model.

The run is on fakes, so nothing of the user's is touched; where a forward needs numbers, it is on real tensors, with
the parameters shared, the buffers copied and gradients off.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import types
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.ambient_state import autocast, undisturbed_randomness, without_cached_casts
from autofuse.fx.trace.class_questions import keeps_functions
from autofuse.fx.trace.equal_modules import Structure, held_once
from autofuse.fx.trace.external_state import ExternalState, unchanged_outside
from autofuse.fx.trace.source_lines import user_place
from autofuse.fx.trace.stand_ins import fake_world
from autofuse.fx.trace.tracer import ForwardArguments, mute_fake_tensor_log
from autofuse.fx.trace.twin import CODE, CONTAINERS, SCALARS, Twins, active, set_mode
from autofuse.fx.trace.unseen_copies import SavedArguments, UnseenCopies
from autofuse.fx.trace.unwritten_parameters import UnwrittenParameters, restore_parameters
from autofuse.fx.trace.user_code import NoWatchInTorch
from autofuse.fx.trace.values import Untraceable
from autofuse.measure.created_bytes import BytesByDevice, CreatedBytes
from autofuse.reasons import forwards, outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.torch_private import FakeTensorMode, is_any_autocast_enabled

Calls = dict[nn.Module, ForwardArguments]


class CallLog:
    """A listener that keeps the arguments of the first call of each module, and what operators made in it."""

    paused = False

    def __init__(
        self, world: Twins, wanted: frozenset[nn.Module] | None = None, counter: CreatedBytes | None = None
    ) -> None:
        self.world, self.wanted, self._counter = world, wanted, counter
        self.calls: Calls = {}
        self.made: dict[nn.Module, BytesByDevice] = {}
        self.outside: ExternalState | None = None  # of the run that it listens to

    def on_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        original = self.world.originals.get(id(module))
        if original is None or original in self.calls or self.wanted is not None and original not in self.wanted:
            return module.forward(*args, **kwargs)
        self.calls[original] = snapshot(args, kwargs, real=self.wanted is not None)
        if self._counter is None:
            return module.forward(*args, **kwargs)
        before = self._counter.by_device.copy()
        result = module.forward(*args, **kwargs)
        self.made[original] = self._counter.by_device - before
        return result

    def on_read(self, owner: Any, name: str, value: Any) -> Any:
        inside = object.__getattribute__(owner, "__dict__")
        if isinstance(value, functools._lru_cache_wrapper) and self.outside is not None:
            self.outside.note(value, name)
        if inside.get(name) is not value or isinstance(value, (*SCALARS, *CONTAINERS, *CODE, Tensor, nn.Module)):
            return value
        if kind := effects.kind_of_state(value):  # it would be moved on, or opened, or locked
            _stop(because(forwards.READS_STATE, name=name, kind=kind), effects.moves_on(value))
        inside[name] = OpenLock() if effects.is_lock(value) else self.world.of(value)
        return inside[name]

    def on_read_dict(self, owner: Any, inside: dict[str, Any], code: types.CodeType) -> None:
        """A twin's own dict may be read."""

    def on_read_table(self, owner: nn.Module, name: str) -> None:
        """A twin has its own children."""

    def on_missing(self, owner: Any, name: str) -> None:
        """Nothing to note."""

    def on_store(self, owner: Any, name: str, value: Any) -> None:
        """A twin may be written to."""


class OpenLock:
    """Stands for a lock of the user's in a run that is not the user's: nobody waits for it, and nobody holds it."""

    def acquire(self, *_: Any, **__: Any) -> bool:
        return True

    def release(self, *_: Any) -> None:
        pass

    def locked(self) -> bool:
        return False

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass


def snapshot(args: tuple[Any, ...], kwargs: dict[str, Any], real: bool) -> ForwardArguments:
    """The arguments as they are now: containers and objects copied, real tensors too."""

    def copied(t: Tensor) -> Tensor:
        return t.detach().clone().requires_grad_(t.requires_grad) if real else t

    world = SavedArguments(copied, watched=False, deep=True)
    return tuple(map(world.of, args)), {k: world.of(v) for k, v in kwargs.items()}


class _Heard(Exception):
    """A tensor of a class with functions of its own is among the arguments."""


def kind_of(call: ForwardArguments, training: bool) -> Hashable | None:
    """Equal for calls that differ in the numbers and the sizes of tensors at most, and in what objects hold.

    None where a tensor hears of each question that is put to it. It is asked at each call of a module in which nothing
    was found, and is written for that.
    """
    args, kwargs = call
    around = autocast() if is_any_autocast_enabled() else None
    try:
        return training, around, tuple(map(_kind, args)), tuple(kwargs), tuple(map(_kind, kwargs.values()))
    except _Heard:
        return None


def _kind(x: object) -> Hashable:
    if type(x) is Tensor or isinstance(x, Tensor):
        if type(x) is not Tensor and not keeps_functions(type(x)):
            raise _Heard
        return x.dtype, x.dim(), x.device
    if isinstance(x, SCALARS):
        return type(x), x
    if isinstance(x, tuple | list):
        return type(x), *map(_kind, x)
    if type(x) is dict:
        return dict, *((key, _kind(value)) for key, value in x.items())
    return (type(x),)


@dataclass(frozen=True)
class ModelCalls:
    """How the modules of a model are called: for each mode on stand-ins, and for real, to check plans on.

    `problems` say why the model could not be run, in one mode or for real. `made`: the bytes of the tensors that
    operators made in a module's call on stand-ins, where more were made in one mode, in that.
    """

    by_mode: dict[bool, Calls]
    real: Calls
    problems: tuple[Reason, ...] = ()
    made: Mapping[nn.Module, BytesByDevice] = field(default_factory=dict)


def calls_of(model: nn.Module, call: ForwardArguments, to_check: Collection[nn.Module]) -> ModelCalls:
    """How the modules of `model` are called in both modes; and for real, for the modules `to_check`."""
    problems: list[Reason] = []
    by_mode: dict[bool, Calls] = {}
    made: dict[nn.Module, BytesByDevice] = {}
    for training in (False, True):
        try:
            by_mode[training] = calls_in_mode(model, call, training, made)
        except Untraceable as error:
            by_mode[training] = {}
            problems.append(error.reason)
    real: Calls = {}
    try:
        wanted = _one_of_each_kind(model, to_check, by_mode)
        real = _silently(lambda: calls_for_real(model, call, False, wanted)) if to_check else {}
    except Untraceable as error:  # each module waits for its first call
        problems.append(because(outcomes.NOT_VERIFIED_YET, why=error.reason))
    return ModelCalls(by_mode, real, tuple(problems), made)


def _one_of_each_kind(model: nn.Module, modules: Collection[nn.Module], by_mode: Mapping[bool, Calls]
                      ) -> frozenset[nn.Module]:  # fmt: skip
    """Of modules that are equal, and are called alike in both modes, the first: a call holds copies of tensors."""
    once, kept = held_once([model]), dict[Hashable, nn.Module]()
    for module in modules:
        calls = [by_mode[training].get(module) for training in (False, True)]
        keys = [None if c is None else Structure(module, c, once).key for c in calls]
        kept.setdefault(module if any(k is None for k in keys) else tuple(keys), module)
    return frozenset(kept.values())


def calls_in_mode(
    model: nn.Module, call: ForwardArguments, training: bool, made: dict[nn.Module, BytesByDevice] | None = None
) -> Calls:
    """Every module that is called in one mode; on real tensors where the forward needs numbers. Raises Untraceable.

    made: is told the bytes of the tensors that operators made in the calls, where they ran on stand-ins.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        return _silently(lambda: calls_on_fakes(model, call, training, fake_world(mode), mode, made))
    except Untraceable:
        return _silently(lambda: calls_for_real(model, call, training))


def calls_on_fakes(
    model: nn.Module, call: ForwardArguments, training: bool, world: Twins, mode: FakeTensorMode,
    made: dict[nn.Module, BytesByDevice] | None = None,
) -> Calls:  # fmt: skip
    """Every module below `model` that is called, and with what. Raises Untraceable where the run fails."""

    def fake(x: Tensor) -> Tensor:
        made = mode.from_tensor(x.detach(), static_shapes=True)
        return made.requires_grad_(x.requires_grad)

    twin, counter = world.of(model), CreatedBytes()
    log = CallLog(world, counter=counter)
    with mute_fake_tensor_log(), mode, counter, torch.enable_grad():
        calls = _run(twin, call, training, log, UnseenCopies(fake, watched=True))
    if made is not None:
        made |= {module: made.get(module, BytesByDevice()) | took for module, took in log.made.items()}
    return calls


def calls_for_real(
    model: nn.Module, call: ForwardArguments, training: bool, wanted: frozenset[nn.Module] | None = None
) -> Calls:
    """The same on real tensors; with `wanted`, only the calls of these modules are kept, on tensors of their own."""

    parameters = UnwrittenParameters()
    world = Twins(parameters.share)
    twin = world.of(model)
    with torch.no_grad(), restore_parameters(parameters):
        return _run(twin, call, training, CallLog(world, wanted), UnseenCopies(parameters.share))


def _silently(find: Callable[[], Calls]) -> Calls:
    """The calls; where the model would write a log line, found while logging is off."""
    try:
        return find()
    except Untraceable as error:
        if error.reason != because(forwards.HAS_EFFECT, name="logging"):
            raise
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return find()
    finally:
        logging.disable(before)


def _stop(why: Reason, leaves_trace: bool) -> None:
    """A print or a log line of the user's would be one too many."""
    if leaves_trace:
        raise Untraceable(why, user_place())


def _run(twin: nn.Module, call: ForwardArguments, training: bool, log: CallLog, arguments: Twins) -> Calls:
    args, kwargs = call
    set_mode(twin, training)
    before, active.listener = active.listener, log
    try:
        with undisturbed_randomness(), without_cached_casts(), unchanged_outside(_stop) as outside, NoWatchInTorch():
            log.outside = outside
            given, named = tuple(map(arguments.of, args)), {k: arguments.of(v) for k, v in kwargs.items()}
            contextvars.copy_context().run(twin, *given, **named)
    except Untraceable:
        raise
    except Exception as error:  # the model is the user's: anything may be raised
        raise Untraceable(because(forwards.MODEL_RAISED, kind=type(error).__name__, error=error)) from error
    finally:
        active.listener = before
    return log.calls
