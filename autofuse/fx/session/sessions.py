"""The models that are optimized in this process, without their wrappers. A model that goes takes its session along."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn

from autofuse.fx.install import subclass
from autofuse.fx.session.options import Options
from autofuse.fx.session.ranks import Ranks
from autofuse.fx.session.session import Session
from autofuse.fx.session.state import ModuleState
from autofuse.results.sites import Report

_SESSIONS: WeakKeyDictionary[nn.Module, Session] = WeakKeyDictionary()


def begin(
    model: nn.Module, options: Options, states: WeakKeyDictionary[nn.Module, ModuleState], ranks: Ranks
) -> Session | None:
    """A new session for `model`, in place of any that it has; None where it has one that answers the same question."""
    known = _SESSIONS.get(model)
    if known is not None and known.answers(options, states):
        return None
    drop(model)
    _SESSIONS[model] = Session(options, states, ranks)
    return _SESSIONS[model]


def session_of(model: nn.Module) -> Session | None:
    """The session of `model` itself."""
    return _SESSIONS.get(model)


def keep(model: nn.Module, session: Session) -> None:
    """From here on, `session` is that of `model`, and its forwards are installed."""
    _SESSIONS[model] = session
    session.install_all()


def drop(model: nn.Module) -> None:
    """Forget the sessions of `model` and of what is below it, and give every module its own class back."""
    for module in model.modules():
        _SESSIONS.pop(module, None)
    subclass.restore(model)


def report_of(model: nn.Module) -> Report:
    """What was found in `model`: by its own session, by that of a part of it, or by that of a model around it."""
    if model in _SESSIONS:
        return _SESSIONS[model].report
    for below in model.modules():
        if below in _SESSIONS:
            return _SESSIONS[below].report
    for session in _SESSIONS.values():
        if any(module in session.states for module in model.modules()):
            return session.report_below(model)
    return Report(())
