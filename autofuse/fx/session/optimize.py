"""optimize(model): find hand-written layers in a live model, check their fused forms, and swap them in.

The public functions of the live door. Knows the order of things; every step is elsewhere.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.display.progress import Tell, told
from autofuse.fx.install import subclass as install
from autofuse.fx.session.model_check import check_whole
from autofuse.fx.session.options import Options, options_of
from autofuse.fx.session.rank_agreement import decide_as_rank_0_does
from autofuse.fx.session.session import Session
from autofuse.fx.trace.ambient_state import undisturbed_randomness
from autofuse.fx.trace.external_state import unchanged_outside
from autofuse.fx.trace.module_calls import Calls, calls_for_real, calls_on_fakes
from autofuse.fx.trace.sharding import postponed
from autofuse.fx.trace.tracer import ForwardArguments, fake_world
from autofuse.fx.trace.values import Untraceable
from autofuse.fx.trace.wrappers import unwrapped
from autofuse.kernels.policy import use
from autofuse.results.before_after import BeforeAfter
from autofuse.results.sites import Report, SiteReport

DISABLE = "AUTOFUSE_DISABLE"  # an environment variable: optimize leaves every model as it is

_SESSIONS: WeakKeyDictionary[nn.Module, Session] = WeakKeyDictionary()
_LOG = logging.getLogger("autofuse")


def optimize(
    model: nn.Module,
    example_inputs: Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any] | None = None,
    *,
    select: str | Iterable[str] | None = None,
    ignore: str | Iterable[str] | None = None,
    modules: str | Iterable[str] | Callable[[str, nn.Module], bool] | None = None,
    verify: bool = True,
    tune: bool | None = None,
    policy: str | None = None,
) -> nn.Module:
    """Swap the hand-written layers of `model` for fused ones, in place, and return it.

    example_inputs: one tensor, a tuple of positional arguments, or a dict of keyword arguments to call the model with.
    Without them each module is looked at when it is first called. The model itself is not run: its parameters, buffers,
    gradients, mode, hooks and the random number generators stay as they are.
    select, ignore: codes of rules or beginnings of them, as a list or as "AF1,AF203".
    modules: which modules may be rewritten: names in the model ("encoder", which covers what lies below it) or patterns
    of names ("layers.*.attention"), or a function of the name and the module.
    verify: check each fused place, and the whole model, against the original in double precision, and take back what
    fails.
    tune: with example inputs, time each fused place against what stood there, with every kernel that can compute it
    here, and take the best; what nothing beats stays. Places of some microseconds are not timed. None: yes, unless the
    environment has AUTOFUSE_MEASURED=0. Without it the defaults of docs/kernels.md hold.
    policy: "speed", "memory" or "accuracy": what decides between kernels. It holds for the process from here on; None
    leaves it as it is.

    `autofuse.report(model)` tells what was found; `autofuse.restore(model)` puts everything back. Asked the same of the
    same model again, optimize does nothing; with other options, other inputs or other modules it starts over. Where the
    environment has AUTOFUSE_DISABLE=1, the model stays as it is. Raises TypeError for arguments of another kind,
    ValueError for a code that no rule bears, a name that fits no module, and a policy that there is not.
    """
    inner = _unwrapped(model)
    options = options_of(inner, example_inputs, select, ignore, modules, verify, tune, policy)
    use(policy=options.policy)
    if os.environ.get(DISABLE, "").lower() not in ("", "0", "false", "no", "off"):
        _LOG.info("%s is set: %s stays as it is.", DISABLE, type(inner).__name__)
        return model
    known = _SESSIONS.get(inner)
    if known is None or known.options != options or not known.covers(inner):
        restore(inner)
        _begin(inner, options)
    return model


@contextmanager
def optimized(
    model: nn.Module,
    example_inputs: Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[nn.Module]:
    """Optimize `model` for the length of a `with` block; takes what `optimize` takes, and raises what it raises.

    Behind the block the model is as it was before: its own, or as an earlier `optimize` left it.
    """
    inner = _unwrapped(model)
    before = _SESSIONS.get(inner)
    optimize(model, example_inputs, **options)
    try:
        yield model
    finally:
        if _SESSIONS.get(inner) is not before:
            restore(inner)
            if before is not None:
                _SESSIONS[inner] = before
                before.install_all()


def report(model: nn.Module) -> Report:
    """What optimize found in `model` and did about it; without sites if it was never optimized.

    For a part of an optimized model, or a wrapper around one, what concerns it.
    """
    inner = _unwrapped(model)
    if inner in _SESSIONS:
        return _SESSIONS[inner].report
    for below in inner.modules():
        if below in _SESSIONS:
            return _SESSIONS[below].report
    for session in _SESSIONS.values():
        if any(module in session.states for module in inner.modules()):
            return session.report_below(inner)
    return Report(())


def keep_profile(model: nn.Module, profile: BeforeAfter) -> None:
    """From here on `report(model)` has it; nothing happens where the model is not optimized."""
    session = _SESSIONS.get(_unwrapped(model))
    if session is not None:
        session.profile = profile


def restore(model: nn.Module) -> nn.Module:
    """Give every module of `model` its own class back, and return `model`."""
    inner = _unwrapped(model)
    for module in inner.modules():
        _SESSIONS.pop(module, None)
    install.restore(inner)
    return model


def _begin(model: nn.Module, options: Options) -> None:
    """Optimize a model that is its own."""
    session = _SESSIONS[model] = Session(model, options)
    why = postponed(model)
    if options.call is None or why:
        session.arm()
        name = type(model).__name__
        _LOG.info("%s: each module is looked at when it is first called%s.", name, f", for {why}" if why else "")
        return
    start = time.perf_counter()
    try:
        _fuse_now(session, model, options.call)
    except BaseException:
        restore(model)  # half of a session is worse than none
        raise
    session.ledger.log(type(model).__name__, time.perf_counter() - start)


def _fuse_now(session: Session, model: nn.Module, call: ForwardArguments) -> None:
    with (
        undisturbed_randomness(),
        unchanged_outside(model),
        told(f"autofuse: {type(model).__name__}") as tell,
    ):
        calls = {training: _calls(session, model, call, training) for training in (False, True)}
        real = _real_calls(session, model, call) if session.checker else {}
        decide_as_rank_0_does(session, lambda: _decide(session, model, call, calls, real, tell))


def _decide(
    session: Session, model: nn.Module, call: ForwardArguments, calls: dict[bool, Calls], real: Calls, tell: Tell
) -> None:  # fmt: skip
    session.fuse(calls, real, tell)
    if session.checker and session.report.with_status("fused"):
        for _ in tell("checking the whole", [model], 1):
            check_whole(session, model, call)


def _calls(session: Session, model: nn.Module, call: ForwardArguments, training: bool) -> Calls:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        return calls_on_fakes(model, call, training, fake_world(mode), mode)
    except Untraceable:
        pass  # the forward needs numbers
    try:
        return calls_for_real(model, call, training)
    except Untraceable as error:
        session.ledger.note(SiteReport("", "", "declined", error.why))
        return {}


def _real_calls(session: Session, model: nn.Module, call: ForwardArguments) -> Calls:
    """The calls to check plans on; none where the model cannot be run, so that each module waits for its first call."""
    try:
        return calls_for_real(model, call, False, frozenset(session.states))
    except Untraceable as error:
        why = f"not verified yet ({error.why}): looked at again when it is called"
        session.ledger.note(SiteReport("", "", "declined", why))
        return {}


def _unwrapped(model: nn.Module) -> nn.Module:
    """The user's model inside what torch wraps around one. Raises TypeError for what is no model."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"autofuse takes a torch.nn.Module, and was given a {type(model).__name__}. Pass the model itself."
        )
    return unwrapped(model)
