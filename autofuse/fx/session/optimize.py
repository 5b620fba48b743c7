"""optimize(model): find hand-written layers in a live model, check their fused forms, and swap them in.

The public functions of the live door. What happens to a model, step by step, is one page: fuse.py.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from autofuse.fx.session import sessions
from autofuse.fx.session.fuse import fuse
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.leftovers import nothing_left
from autofuse.fx.session.options import Options, options_of
from autofuse.fx.session.ranks import Disagreement, Ranks
from autofuse.fx.session.session import Session
from autofuse.fx.session.state import States, states_of
from autofuse.fx.trace.sharding import why_not_yet_traceable
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.wrappers import unwrap, user_modules
from autofuse.kernels.policy import use
from autofuse.results.before_after import BeforeAfter
from autofuse.results.sites import Report

DISABLE = "AUTOFUSE_DISABLE"  # an environment variable: optimize leaves every model as it is

_PROFILED = "autofuse.profiling.live.before_after"  # imported where a profile is asked for: few need it
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
    compile: bool | Literal["auto"] = False,
    profile: bool | Mapping[str, Any] = False,
    loss_fn: Callable[..., Any] | None = None,
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
    here, and take the best; the original stays where it is fastest. Training and inference are timed apart. Places of
    some microseconds are not timed. At the end whole steps are timed, and what makes them slower is taken back. None:
    yes, unless the environment has AUTOFUSE_MEASURED=0. Without it the defaults of docs/kernels.md hold.
    policy: "speed", "memory" or "accuracy": what decides between kernels. It holds for the process from here on; None
    leaves it as it is.

    compile: have the repeated blocks of the model (the whole of it where nothing is repeated) run by torch.compile, in
    place, by `Module.compile`. "auto": where whole steps are faster with it beyond noise, timed on copies in the mode
    that the model is in; the compiled original is timed too, and runs where it is faster than the compiled fused model.
    That takes two compilations of each kind of block. True: without timing. What torch.compile computes is not verified
    by autofuse. `restore` takes it back.

    profile: also measure whole steps before and after, layer by layer: `autofuse.report(model).profile` then has both
    profiles, the comparison of steps in interleaved pairs, and what each place was predicted to save and saved. True,
    or a dict of options of `autofuse.profile` (step, optimizers, steps, ...) and `pairs`. The model is run for that,
    and put back as it was. Raises ValueError without example inputs.

    loss_fn: the loss that the caller computes of what the model returns. It is not called here: it says that the logits
    which the model returns are for a loss, so in training they are a tensor that is computed when somebody reads it,
    and cross entropy of it is computed in blocks of rows (docs/training.md). A model that computes its loss itself
    needs none.

    `autofuse.report(model)` tells what was found; `autofuse.restore(model)` puts everything back. Asked the same of the
    same model again, optimize does nothing; with other options, other inputs or other modules it starts over. Where the
    environment has AUTOFUSE_DISABLE=1, the model stays as it is. Raises TypeError for arguments of another kind,
    ValueError for an unknown code of a rule, a name that fits no module, an unknown policy,
    another `compile`, a `loss_fn` that cannot be called, and `compile` beside `profile`.
    """
    if profile and compile:
        raise ValueError("profile measures the model without a compiler, and compile was asked for too: ask for one.")
    if profile:
        return _profiled()(model, example_inputs, profile, select=select, ignore=ignore, modules=modules,
                           verify=verify, tune=tune, policy=policy, compile=compile, loss_fn=loss_fn)  # fmt: skip
    inner = unwrap(model)
    try:
        named = user_modules(inner)
    except Exception as error:  # a module that cannot be hashed: torch cannot list its parameters either
        _LOG.warning("%s: %s.", type(inner).__name__, reason_of_failure(error, "listing its modules"))
        return model
    options = options_of(named, example_inputs, select, ignore, modules, verify, tune, policy, compile, loss_fn)
    use(policy=options.policy)
    name = type(inner).__name__
    if os.environ.get(DISABLE, "").lower() not in ("", "0", "false", "no", "off"):
        _LOG.info("%s is set: %s stays as it is.", DISABLE, name)
        return model
    states = states_of(named, options.wants)
    try:
        _optimized(inner, named, options, states)
    except Disagreement:  # of ranks, which only the user can solve
        raise
    except Exception as error:  # the model is its own again
        _LOG.warning("%s: %s.", name, sessions.note_failure(inner, options, named, error))
    return model


def _optimized(inner: nn.Module, named: list[tuple[str, nn.Module]], options: Options, states: States) -> None:
    name = type(inner).__name__
    if sessions.is_answered(inner, options, states):
        return
    with sessions.begun(inner, options, states, Ranks(named)) as session:
        why = why_not_yet_traceable(inner)
        if options.call is None or why:
            session.arm(None if why else partial(_at_first_call, weakref.ref(inner), weakref.ref(session)))
            _LOG.info("%s: each module is looked at when it is first called%s.", name, f", for {why}" if why else "")
            return
        start = time.perf_counter()
        with nothing_left():
            fuse(inner, options.call, session)
        session.ledger.log(name, time.perf_counter() - start)


def _at_first_call(model: weakref.ref[nn.Module], session: weakref.ref[Session], call: ForwardArguments) -> None:
    """Look at the whole of a model, which is called with `call`."""
    inner, own = model(), session()
    if inner is not None and own is not None:
        start = time.perf_counter()
        fuse(inner, call, own)
        own.ledger.log(type(inner).__name__, time.perf_counter() - start)


def _profiled() -> Callable[..., nn.Module]:
    found: Callable[..., nn.Module] = importlib.import_module(_PROFILED).optimize_and_profile
    return found


@contextmanager
def optimized(
    model: nn.Module,
    example_inputs: Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[nn.Module]:
    """Optimize `model` for the length of a `with` block; takes what `optimize` takes, and raises what it raises.

    After the block the model is as it was before: its own, or as an earlier `optimize` left it.
    """
    inner = unwrap(model)
    before = sessions.session_of(inner)
    optimize(model, example_inputs, **options)
    try:
        yield model
    finally:
        if sessions.session_of(inner) is not before:
            sessions.drop(inner)
            if before is not None:
                sessions.keep(inner, before)


def report(model: nn.Module) -> Report:
    """What optimize found in `model` and did about it; without sites if it was never optimized.

    For a part of an optimized model, or a wrapper around one, what concerns it. Raises TypeError for what is no model.
    """
    return sessions.report_of(unwrap(model))


def keep_profile(model: nn.Module, profile: BeforeAfter) -> None:
    """From here on `report(model)` has it; nothing happens where the model is not optimized."""
    session = sessions.session_of(unwrap(model))
    if session is not None:
        session.profile = profile


def restore(model: nn.Module) -> nn.Module:
    """Give every module of `model` its own forward back, and return `model`. Raises TypeError for what is no model."""
    sessions.drop(unwrap(model))
    return model
