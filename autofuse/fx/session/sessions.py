"""The sessions of the optimized models in this process. A session is freed with its model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from weakref import WeakKeyDictionary

from torch import nn

from autofuse.fx.install.dispatch import entry_of, is_installed, remove_unused_dispatchers, restore
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.options import Options
from autofuse.fx.session.ranks import Ranks
from autofuse.fx.session.session import Session
from autofuse.fx.session.state import ModuleState
from autofuse.results.sites import Report

_LOG = logging.getLogger("autofuse")
_SESSIONS: WeakKeyDictionary[nn.Module, Session] = WeakKeyDictionary()


def is_optimized(model: nn.Module, options: Options, modules: Iterable[nn.Module]) -> bool:
    """Whether `model` was optimized with these options, and all installed forwards are still in place."""
    known = _SESSIONS.get(model)
    if known is None or known.options != options:
        return False
    # Copies of modules have a state too, but they are not part of the model.
    mine = {m for m, s in known.states.items() if not s.belongs_to_copy}
    return set(modules) == mine and all(is_installed(m) for m, s in known.states.items() if s.runs)


@contextmanager
def new_session(
    model: nn.Module, options: Options, states: WeakKeyDictionary[nn.Module, ModuleState], ranks: Ranks
) -> Iterator[Session]:
    """Replace the session of `model` by a new one. If the block raises, the model runs its original forwards."""
    discard(model)
    session = _SESSIONS[model] = Session(options, states, ranks)
    with ExitStack() as failed:
        failed.callback(discard, model)  # a half-finished session must not stay
        yield session
        failed.pop_all()
    remove_unused_dispatchers()  # the copies for checks no longer exist


def note_failure(model: nn.Module, options: Options, named: list[tuple[str, nn.Module]], error: Exception) -> str:
    """Record an internal error in the report of `model`. Returns the message."""
    why = reason_of_failure(error, "looking at the model")
    with suppress(Exception):  # an unhashable model has no report
        discard(model)
        states = WeakKeyDictionary[nn.Module, ModuleState]()
        _SESSIONS[model] = Session(options, states, Ranks(named))
        _SESSIONS[model].note_unread(why)
    return str(why)


def session_of(model: nn.Module) -> Session | None:
    """The session of exactly this model."""
    return _SESSIONS.get(model)


def reinstall_session(model: nn.Module, session: Session) -> None:
    """Make `session` the session of `model` again, and install its forwards."""
    _SESSIONS[model] = session
    session.install_all()


def discard(model: nn.Module) -> None:
    """End the sessions of `model` and its submodules, and restore all original forwards."""
    for module in model.modules():
        session = _SESSIONS.pop(module, None)
        if session is not None:
            session.compiled_modules.restore()
    restore(model)


def report_of(model: nn.Module) -> Report:
    """The report for `model`: from its own session, a submodule's, or that of a model that contains it."""
    try:
        return _report_of(model)
    except Exception as error:  # an unhashable model was never optimized
        _LOG.warning("%s: %s.", type(model).__name__, reason_of_failure(error, "looking for its report"))
        return Report(())


def _report_of(model: nn.Module) -> Report:
    if model in _SESSIONS:
        return _SESSIONS[model].report
    for module in model.modules():
        entry_of(module)  # registers copies
    for below in model.modules():
        if below in _SESSIONS:
            return _SESSIONS[below].report
    for session in _SESSIONS.values():
        if any(module in session.states for module in model.modules()):
            return session.report_below(model)
    return Report(())
