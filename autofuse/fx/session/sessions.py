"""The models that are optimized in this process, without their wrappers. A model that goes takes its session along."""

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


def is_answered(model: nn.Module, options: Options, modules: Iterable[nn.Module]) -> bool:
    """Whether `model` was optimized with these options, and each of `modules` still has the forward it was given."""
    known = _SESSIONS.get(model)
    if known is None or known.options != options:
        return False
    mine = {m for m, s in known.states.items() if not s.is_a_copys}
    return set(modules) == mine and all(is_installed(m) for m, s in known.states.items() if s.runs)


@contextmanager
def begun(
    model: nn.Module, options: Options, states: WeakKeyDictionary[nn.Module, ModuleState], ranks: Ranks
) -> Iterator[Session]:
    """A new session for `model`, in place of any that it has. If the block fails, the model is as it was: its own."""
    drop(model)
    session = _SESSIONS[model] = Session(options, states, ranks)
    with ExitStack() as failed:
        failed.callback(drop, model)  # half of a session is worse than none
        yield session
        failed.pop_all()
    remove_unused_dispatchers()  # copies that were made for checks are gone


def note_failure(model: nn.Module, options: Options, named: list[tuple[str, nn.Module]], error: Exception) -> str:
    """Have the report of `model` say that autofuse failed, and how; returns that."""
    why = reason_of_failure(error, "looking at the model")
    with suppress(Exception):  # what cannot be hashed has no report
        drop(model)
        states = WeakKeyDictionary[nn.Module, ModuleState]()
        _SESSIONS[model] = Session(options, states, Ranks(named))
        _SESSIONS[model].note_unread(why)
    return str(why)


def session_of(model: nn.Module) -> Session | None:
    """The session of `model` itself."""
    return _SESSIONS.get(model)


def keep(model: nn.Module, session: Session) -> None:
    """From here on, `session` is that of `model`, and its forwards are installed."""
    _SESSIONS[model] = session
    session.install_all()


def drop(model: nn.Module) -> None:
    """Forget the sessions of `model` and of what is below it, and give every module its own forward back."""
    for module in model.modules():
        session = _SESSIONS.pop(module, None)
        if session is not None:
            session.compiled_modules.restore()
    restore(model)


def report_of(model: nn.Module) -> Report:
    """What was found in `model`: by its own session, by that of a part of it, or by that of a model around it."""
    try:
        return _report_of(model)
    except Exception as error:  # what cannot be hashed, or compared, was never optimized
        _LOG.warning("%s: %s.", type(model).__name__, reason_of_failure(error, "looking for its report"))
        return Report(())


def _report_of(model: nn.Module) -> Report:
    if model in _SESSIONS:
        return _SESSIONS[model].report
    for module in model.modules():
        entry_of(module)  # a copy that nobody heard of is known from here on
    for below in model.modules():
        if below in _SESSIONS:
            return _SESSIONS[below].report
    for session in _SESSIONS.values():
        if any(module in session.states for module in model.modules()):
            return session.report_below(model)
    return Report(())
