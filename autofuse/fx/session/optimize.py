"""The public functions of the FX pass: optimize, optimized, report and restore.

fuse.py shows the steps for one model in order.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from autofuse.fx.session import sessions
from autofuse.fx.session.fuse import fuse
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.leftovers import without_leftovers
from autofuse.fx.session.options import Options, options_of
from autofuse.fx.session.ranks import Disagreement, Ranks
from autofuse.fx.session.session import Session
from autofuse.fx.session.state import States, states_of
from autofuse.fx.trace.effects import has_finalizers
from autofuse.fx.trace.sharding import why_not_yet_traceable
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.wrappers import unwrap, user_modules
from autofuse.kernels.policy import use
from autofuse.results.before_after import BeforeAfter
from autofuse.results.sites import Report

DISABLE = "AUTOFUSE_DISABLE"  # an environment variable: if it is set, optimize changes no model

_PROFILED = "autofuse.profiling.live.before_after"  # imported only if a profile is requested
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
    """Replace hand-written layers of a model by fused operations, in place.

    autofuse traces the modules and finds the sites of its rules. By default it compares each fused site with the
    original code in float64 and, with example inputs, measures both. A site keeps its original code if the results
    differ or if fusion gains nothing. The model itself does not run. Its parameters, buffers, gradients, training mode
    and hooks, and all random number generators, stay unchanged.

    A second call with the same arguments does nothing. A call with other options, inputs or modules starts again from
    the original model. If the environment variable AUTOFUSE_DISABLE is 1, the model stays unchanged. An internal error
    of autofuse is not raised: the original code runs, and the report has the reason.

    Args:
        model: The model. It may be wrapped, for example by DistributedDataParallel or torch.compile.
        example_inputs: The arguments of a typical call: one tensor, a tuple or list of positional arguments, or a dict
            of keyword arguments. If None, modules are traced when they are first called.
        select: Codes of the rules to apply, or prefixes of codes: a list, or a string such as "AF1,AF203". None means
            all rules.
        ignore: Codes of the rules to leave out, in the same form.
        modules: The modules that may be rewritten: names ("encoder", which includes its submodules), patterns
            ("layers.*.attention"), or a function of name and module that returns a bool. None means all modules.
        verify: Compare each fused site and the whole model with the original in float64, and roll back what differs.
        tune: Measure each fused site against the original code, with every available kernel, and keep the best.
            Training and inference are timed separately. Sites that take microseconds are not timed. Then whole steps
            are timed, and sites that make a step slower are rolled back. This needs example inputs. None means True,
            unless the environment variable AUTOFUSE_MEASURED is 0. If False, kernels are chosen by the defaults of
            docs/kernels.md.
        policy: How to choose between correct kernels: "speed", "memory" or "accuracy". It applies to the whole process
            from now on. None keeps the current policy.
        compile: Whether torch.compile compiles the repeated blocks of the model, or the whole model if no block is
            repeated, with `Module.compile`. False: no. True: yes, without timing. "auto": copies of the model are
            timed in its current mode: eager, fused and compiled, and compiled without fusion. The fastest stays, and
            eager stays unless another is faster beyond noise. Each kind of block is compiled twice for this. autofuse
            does not verify the results of torch.compile.
        profile: Also measure whole steps before and after, layer by layer. `autofuse.report(model).profile` then holds
            both profiles, the comparison of steps in interleaved pairs, and the predicted and measured saving of each
            site. True, or a dict with options of `autofuse.profile` (`step`, `optimizers`, `steps`, ...) and `pairs`.
            The model runs for this measurement, and its state is restored.
        loss_fn: The loss function that you apply to the result of the model. It is not called. It tells autofuse that
            the returned logits are used for a loss only. In training the model then returns logits that are computed
            when they are read, and cross entropy is computed in blocks of rows (docs/training.md). A model that
            computes its own loss does not need it.

    Returns:
        `model` itself. `autofuse.report(model)` lists the sites; `autofuse.restore(model)` undoes all changes.

    Raises:
        TypeError: An argument has an unsupported type, or `loss_fn` is not callable.
        ValueError: A rule code, a module name, a policy or a value of `compile` is unknown; `profile` and `compile`
            are both requested; or `profile` is requested without example inputs.
        RuleError: A rule of yours calls a function that cannot be imported.
        RuntimeError: The ranks of a distributed job cannot make the same decisions.

    Examples:
        >>> model = autofuse.optimize(model, example_inputs=x)
        >>> print(autofuse.report(model))
    """
    if profile and compile:
        raise ValueError(
            "optimize got both profile and compile, but profile measures the model without a compiler. "
            "Pass only one of them."
        )
    if profile:
        return _load_profiling()(model, example_inputs, profile, select=select, ignore=ignore, modules=modules,
                           verify=verify, tune=tune, policy=policy, compile=compile, loss_fn=loss_fn)  # fmt: skip
    inner = unwrap(model)
    try:
        named = user_modules(inner)
    except Exception as error:  # an unhashable module; torch cannot list its parameters either
        _LOG.warning("%s: %s.", type(inner).__name__, reason_of_failure(error, "listing its modules"))
        return model
    options = options_of(named, example_inputs, select, ignore, modules, verify, tune, policy, compile, loss_fn)
    use(policy=options.policy)
    name = type(inner).__name__
    if os.environ.get(DISABLE, "").lower() not in ("", "0", "false", "no", "off"):
        _LOG.info("%s is set: %s stays unchanged.", DISABLE, name)
        return model
    _optimize_or_note_failure(inner, named, options)
    return model


def optimize_on_paper(model: nn.Module, example_inputs: Any) -> None:
    """Fuse a model of fake tensors in place, without verifying or timing.

    Forwards are planned in the modes that the model's modules are in: a step on paper runs no other one.
    """
    named = user_modules(model)
    options = options_of(named, example_inputs, None, None, None, False, False, None)
    options = replace(options, modes=frozenset(module.training for _, module in named))
    _optimize_or_note_failure(model, named, options)


def _optimize_or_note_failure(inner: nn.Module, named: list[tuple[str, nn.Module]], options: Options) -> None:
    states = states_of(named, options.wants)
    try:
        _optimize(inner, named, options, states)
    except Disagreement:  # the user must solve it
        raise
    except Exception as error:  # the model already has its original forwards again
        _LOG.warning("%s: %s.", type(inner).__name__, sessions.note_failure(inner, options, named, error))


def _optimize(inner: nn.Module, named: list[tuple[str, nn.Module]], options: Options, states: States) -> None:
    name = type(inner).__name__
    if sessions.is_optimized(inner, options, states):
        return
    with sessions.new_session(inner, options, states, Ranks(named)) as session:
        why = why_not_yet_traceable(inner)
        if not why and (finalized := has_finalizers(inner)):
            why = f"a copy of {finalized} would run its finalizer"
        if options.call is None or why:
            session.capture_later(
                None if why else partial(_fuse_at_first_call, weakref.ref(inner), weakref.ref(session))
            )
            _LOG.info("%s: each module is traced at its first call%s.", name, f", because {why}" if why else "")
            return
        start = time.perf_counter()
        with without_leftovers():
            fuse(inner, options.call, session)
        session.ledger.log(name, time.perf_counter() - start)


def _fuse_at_first_call(model: weakref.ref[nn.Module], session: weakref.ref[Session], call: ForwardArguments) -> None:
    """Fuse a whole model at its first call."""
    inner, own = model(), session()
    if inner is not None and own is not None:
        start = time.perf_counter()
        fuse(inner, call, own)
        own.ledger.log(type(inner).__name__, time.perf_counter() - start)


def _load_profiling() -> Callable[..., nn.Module]:
    found: Callable[..., nn.Module] = importlib.import_module(_PROFILED).optimize_and_profile
    return found


@contextmanager
def optimized(
    model: nn.Module,
    example_inputs: Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[nn.Module]:
    """Optimize a model during a `with` block.

    After the block the model runs the same forwards as before it: the original ones, or those of an earlier `optimize`.

    Args:
        model: The model.
        example_inputs: The arguments of a typical call, as in `optimize`.
        **options: The other arguments of `optimize`.

    Yields:
        `model` itself.

    Raises:
        TypeError: As in `optimize`.
        ValueError: As in `optimize`.

    Examples:
        >>> with autofuse.optimized(model, x):
        ...     result = model(x)
    """
    inner = unwrap(model)
    before = sessions.session_of(inner)
    optimize(model, example_inputs, **options)
    try:
        yield model
    finally:
        if sessions.session_of(inner) is not before:
            sessions.discard(inner)
            if before is not None:
                sessions.reinstall_session(inner, before)


def report(model: nn.Module) -> Report:
    """The sites that `optimize` found in a model, and what it did with each.

    Args:
        model: A model, a submodule of an optimized model, or a wrapper around one.

    Returns:
        The report. It has no sites if the model was never optimized.

    Raises:
        TypeError: `model` is not a module.
    """
    return sessions.report_of(unwrap(model))


def keep_profile(model: nn.Module, profile: BeforeAfter) -> None:
    """Attach a profile to the report of an optimized model. Does nothing if the model is not optimized."""
    session = sessions.session_of(unwrap(model))
    if session is not None:
        session.profile = profile


def restore(model: nn.Module) -> nn.Module:
    """Undo `optimize`: every module of a model runs its original forward again.

    Args:
        model: The model.

    Returns:
        `model` itself.

    Raises:
        TypeError: `model` is not a module.
    """
    sessions.discard(unwrap(model))
    return model
