"""The calls of a model's modules, found by running a twin of the model.

The twin runs on fake tensors, so the user's objects do not change. If a forward needs numbers, the twin runs on real
tensors: it shares the parameters, copies the buffers, and gradients are off.
"""

from __future__ import annotations

import contextvars
import functools
import types
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.trace import effects
from autofuse.fx.trace.ambient_state import autocast, preserve_generators, without_autocast_cache
from autofuse.fx.trace.class_questions import keeps_functions
from autofuse.fx.trace.coroutines import close_coroutines
from autofuse.fx.trace.equal_modules import Structure, tensors_held_once
from autofuse.fx.trace.external_state import ExternalState, restore_external_state
from autofuse.fx.trace.quiet_log import mute_fake_tensor_log, quiet_log
from autofuse.fx.trace.source_lines import user_place
from autofuse.fx.trace.stand_ins import fake_world
from autofuse.fx.trace.tracer import ForwardArguments
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
    """A listener that keeps the arguments of each module's first call, and the bytes that operators created in it."""

    paused = False

    def __init__(
        self, world: Twins, wanted: frozenset[nn.Module] | None = None, counter: CreatedBytes | None = None
    ) -> None:
        self.world, self.wanted, self._counter = world, wanted, counter
        self.calls: Calls = {}
        self.created_bytes: dict[nn.Module, BytesByDevice] = {}
        self.outside: ExternalState | None = None  # the external state of the run

    def on_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the first call of a module and run it."""
        original = self.world.originals.get(id(module))
        if original is None or original in self.calls or self.wanted is not None and original not in self.wanted:
            return module.forward(*args, **kwargs)
        self.calls[original] = snapshot(args, kwargs, real=self.wanted is not None)
        if self._counter is None:
            return module.forward(*args, **kwargs)
        before = self._counter.by_device.copy()
        result = module.forward(*args, **kwargs)
        self.created_bytes[original] = self._counter.by_device - before
        return result

    def on_read(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an object by its copy when it is first read."""
        inside = object.__getattribute__(owner, "__dict__")
        if isinstance(value, functools._lru_cache_wrapper) and self.outside is not None:
            self.outside.note(value, name)
        if isinstance(value, types.FunctionType) and self.outside is not None:
            self.outside.note(value, name, ())  # its variables
        if effects.prints_unseen(value):
            _stop(because(forwards.READS_STATE, name=name, kind=effects.kind_of_state(value)), True)
        if inside.get(name) is not value or isinstance(value, (*SCALARS, *CONTAINERS, *CODE, Tensor, nn.Module)):
            return value
        if kind := effects.kind_of_state(value):  # a read may change the state
            _stop(because(forwards.READS_STATE, name=name, kind=kind), effects.changes_when_read(value))
        inside[name] = OpenLock() if effects.is_lock(value) else self.world.of(value)
        return inside[name]

    def on_read_dict(self, owner: Any, inside: dict[str, Any], code: types.CodeType) -> None:
        """A twin's own dict may be read."""

    def on_read_table(self, owner: nn.Module, name: str) -> None:
        """A twin has its own children."""

    def on_unrecorded_store(self, owner: Any, name: str, value: Any) -> None:
        """Never called, because this listener is not paused."""

    def on_missing(self, owner: Any, name: str) -> None:
        """Nothing to record."""

    def on_machinery(self, owner: Any, name: str) -> None:
        """Nothing to record."""

    def on_store(self, owner: Any, name: str, value: Any) -> None:
        """A twin may be written to."""


class OpenLock:
    """The stand-in for a user's lock in a run that is not the user's. It never blocks."""

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
    """A copy of the arguments as they are now. Containers and objects are copied, and tensors if `real` is true."""

    def copy(t: Tensor) -> Tensor:
        return t.detach().clone().requires_grad_(t.requires_grad) if real else t

    world = SavedArguments(copy, watched=False, deep=True)
    return tuple(map(world.of, args)), {k: world.of(v) for k, v in kwargs.items()}


class _OverridesFunctions(Exception):
    """The arguments contain a tensor whose class overrides torch's functions."""


def kind_of(call: ForwardArguments, training: bool) -> Hashable | None:
    """A key that is equal for calls that differ only in tensors' numbers and sizes and in the contents of objects.

    It runs at each call of a module in which nothing was found, so it must be fast.

    Returns:
        The key; None if the class of a tensor overrides torch's functions, because even a comparison would call these.
    """
    args, kwargs = call
    autocast_state = autocast() if is_any_autocast_enabled() else None
    try:
        return training, autocast_state, tuple(map(_kind, args)), tuple(kwargs), tuple(map(_kind, kwargs.values()))
    except _OverridesFunctions:
        return None


def _kind(x: object) -> Hashable:
    if type(x) is Tensor or isinstance(x, Tensor):
        if type(x) is not Tensor and not keeps_functions(type(x)):
            raise _OverridesFunctions
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
    """The calls of a model's modules.

    Attributes:
        by_mode: training or not -> the calls, on stand-ins.
        real: the calls on real tensors, on which plans are verified.
        real_in_training: those of the modules that get another kind of call in training. `real` then has evaluation's.
        problems: why the model could not be run, in one mode or on real tensors.
        created_bytes: the bytes of the tensors that operators created in a call on stand-ins, in the mode with more.
    """

    by_mode: dict[bool, Calls]
    real: Calls
    real_in_training: Calls = field(default_factory=dict)
    problems: tuple[Reason, ...] = ()
    created_bytes: Mapping[nn.Module, BytesByDevice] = field(default_factory=dict)


def calls_of(
    model: nn.Module, call: ForwardArguments, to_check: Collection[nn.Module],
    modes: Collection[bool] = (False, True),
) -> ModelCalls:  # fmt: skip
    """The calls of the modules of `model` in these modes, and the calls on real tensors of the modules `to_check`."""
    problems: list[Reason] = []
    by_mode: dict[bool, Calls] = {False: {}, True: {}}
    created_bytes: dict[nn.Module, BytesByDevice] = {}
    for training in (mode for mode in (False, True) if mode in modes):
        try:
            by_mode[training] = calls_in_mode(model, call, training, created_bytes)
        except Untraceable as error:
            by_mode[training] = {}
            problems.append(error.reason)
    real: Calls = {}
    in_training: Calls = {}
    try:
        wanted = _one_of_each_kind(model, to_check, by_mode)
        real = _without_logging(lambda: calls_on_real_tensors(model, call, False, wanted)) if to_check else {}
        if others := frozenset(m for m in wanted if _has_other_call(by_mode, m)):
            in_training = _without_logging(lambda: calls_on_real_tensors(model, call, True, others))
    except Untraceable as error:  # each module is verified at its first call instead
        problems.append(because(outcomes.NOT_VERIFIED_YET, why=error.reason))
    return ModelCalls(by_mode, real, in_training, tuple(problems), created_bytes)


def _has_other_call(by_mode: Mapping[bool, Calls], module: nn.Module) -> bool:
    """Whether a module gets another kind of call in training: no cache, for example."""
    calls = [by_mode[training].get(module) for training in (False, True)]
    return all(calls) and kind_of(calls[0], False) != kind_of(calls[1], False)  # type: ignore[arg-type]


def _one_of_each_kind(model: nn.Module, modules: Collection[nn.Module], by_mode: Mapping[bool, Calls]
                      ) -> frozenset[nn.Module]:  # fmt: skip
    """The first of each group of equal modules with equal calls. One is enough, and a call holds copies of tensors."""
    once, representatives = tensors_held_once([model]), dict[Hashable, nn.Module]()
    for module in modules:
        calls = [by_mode[training].get(module) for training in (False, True)]
        keys = [None if c is None else Structure(module, c, once).strict_key for c in calls]
        representatives.setdefault(module if any(k is None for k in keys) else tuple(keys), module)
    return frozenset(representatives.values())


def calls_in_mode(
    model: nn.Module,
    call: ForwardArguments,
    training: bool,
    created_bytes: dict[nn.Module, BytesByDevice] | None = None,
) -> Calls:
    """The call of each module in one mode; on real tensors if a forward needs numbers.

    Args:
        model: the model.
        call: its arguments.
        training: the mode.
        created_bytes: receives the bytes of the tensors that operators created in the calls, if they ran on stand-ins.

    Raises:
        Untraceable: the model could not be run.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        return _without_logging(lambda: calls_on_fakes(model, call, training, fake_world(mode), mode, created_bytes))
    except Untraceable:
        return _without_logging(lambda: calls_on_real_tensors(model, call, training))


def calls_on_fakes(
    model: nn.Module, call: ForwardArguments, training: bool, world: Twins, mode: FakeTensorMode,
    created_bytes: dict[nn.Module, BytesByDevice] | None = None,
) -> Calls:  # fmt: skip
    """The call of each module below `model` on fake tensors.

    Raises:
        Untraceable: the run failed.
    """

    def fake(x: Tensor) -> Tensor:
        copy = mode.from_tensor(x.detach(), static_shapes=True)
        return copy.requires_grad_(x.requires_grad)

    twin, counter = world.of(model), CreatedBytes()
    log = CallLog(world, counter=counter)
    with mute_fake_tensor_log(), mode, counter, torch.enable_grad():
        calls = _run(twin, call, training, log, UnseenCopies(fake, watched=True))
    if created_bytes is not None:
        created_bytes |= {
            module: created_bytes.get(module, BytesByDevice()) | created
            for module, created in log.created_bytes.items()
        }
    return calls


def calls_on_real_tensors(
    model: nn.Module, call: ForwardArguments, training: bool, wanted: frozenset[nn.Module] | None = None
) -> Calls:
    """The same on real tensors. With `wanted`, only the calls of these modules are kept, with copies of tensors."""

    parameters = UnwrittenParameters()
    world = Twins(parameters.share)
    twin = world.of(model)
    with torch.no_grad(), restore_parameters(parameters):
        return _run(twin, call, training, CallLog(world, wanted), UnseenCopies(parameters.share))


def _without_logging(find: Callable[[], Calls]) -> Calls:
    """The calls. If the model would write a log line, they are found while logging is off."""
    try:
        return find()
    except Untraceable as error:
        if error.reason != because(forwards.HAS_EFFECT, name="logging"):
            raise
    with quiet_log():
        return find()


def _stop(why: Reason, has_lasting_effect: bool) -> None:
    """Stop the run before a lasting effect: a print or a log line would appear twice."""
    if has_lasting_effect:
        raise Untraceable(why, user_place())


def _run(twin: nn.Module, call: ForwardArguments, training: bool, log: CallLog, arguments: Twins) -> Calls:
    args, kwargs = call
    set_mode(twin, training)
    before, active.listener = active.listener, log
    try:
        with (
            preserve_generators(),
            without_autocast_cache(),
            restore_external_state(_stop) as outside,
            NoWatchInTorch(),
        ):
            log.outside = outside
            own_args, own_kwargs = tuple(map(arguments.of, args)), {k: arguments.of(v) for k, v in kwargs.items()}
            close_coroutines(contextvars.copy_context().run(twin, *own_args, **own_kwargs))
    except Untraceable:
        raise
    except Exception as error:  # the user's model may raise anything
        raise Untraceable(because(forwards.MODEL_RAISED, kind=type(error).__name__, error=error)) from error
    finally:
        active.listener = before
    return log.calls
