"""What a session found, place by place, and the words for it. Knows plans and verdicts; decides nothing."""

from __future__ import annotations

import inspect
import logging
import re
import types
from collections.abc import Collection, Hashable
from dataclasses import replace
from typing import Any, TypeGuard

from torch import nn

from autofuse.fx.rewrite.author_text import written_at
from autofuse.fx.rewrite.module_plan import Found, ModulePlan
from autofuse.fx.session.site_checks import Verdict
from autofuse.fx.trace.own_forward import definer_of
from autofuse.fx.trace.source_lines import is_users
from autofuse.fx.trace.twin import plain_class
from autofuse.fx.trace.values import Untraceable
from autofuse.match.refusals import Refusal, unread
from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.results.sites import Report, SiteReport

_LOG = logging.getLogger("autofuse")
_RANK = ("fused", "rolled-back", "declined")  # of several words about one place, the best news stands

_HELPERS = 3  # how deep functions that a forward calls are looked into
_WORTH_A_WORD = re.compile(r"softmax|@|matmul|einsum|bmm|rsqrt|\.mean\(|\.var\(|tanh|erf|sigmoid|gelu|silu|norm")


class Ledger:
    """The words about one model's modules."""

    def __init__(self) -> None:
        self._sites: dict[Hashable, SiteReport] = {}

    def report(self, names: tuple[str, ...]) -> Report:
        """What was found in the modules called `names`, and what is about no module of them all, in that order."""
        order = {"": -1} | {name: place for place, name in enumerate(names)}
        sites = [site for site in self._sites.values() if site.module in order]
        return Report(tuple(sorted(sites, key=lambda s: (order[s.module], s.line or 0))))

    def log(self, model: str, seconds: float) -> None:
        """Tell the log: one line, one for each place at the level DEBUG, and what was taken back as a warning."""
        report = Report(tuple(self._sites.values()))
        for site in report:
            level = logging.WARNING if site.status == "rolled-back" else logging.DEBUG
            what = site.kernel if site.status == "fused" else site.reason
            _LOG.log(level, "%s: %s %s %s: %s", model, site.module or "(model)", site.rule, site.status, what)
        _LOG.info("%s: %s, in %.1f s.", model, report.summary, seconds)

    def note(self, site: SiteReport) -> None:
        """Add a word about a place."""
        key = (site.rule, site.module, site.file, site.line, site.reason if not site.rule else "")
        known = self._sites.get(key)
        if known is None or _RANK.index(site.status) < _RANK.index(known.status):
            self._sites[key] = site

    def note_plan(self, name: str, plan: ModulePlan, verdict: Verdict | None, fused_elsewhere: set[str]) -> None:
        """Add what a plan for the module called `name` holds."""
        self._sites.pop(("", name, "", None, str(because(outcomes.NEVER_CALLED))), None)
        for found in plan.found:
            if found.fused or found.rule not in fused_elsewhere:
                self.note(_site_report(name, found, verdict))
        for found, why in verdict.failed if verdict else ():
            self.note(_site_report(name, found, None, "rolled-back", why))

    def note_untraceable(self, name: str, module: nn.Module, error: Untraceable) -> None:
        """Say why a module was not looked into, if it might have held something."""
        self._sites.pop(("", name, "", None, str(because(outcomes.NEVER_CALLED))), None)
        if may_hold_a_site(module):
            told = unread(error.reason, written_at(error.place))
            file = error.place.file if error.place else ""
            self.note(SiteReport(
                "", name, "declined", told.reason, "", None, file, told.line, told.advice, told.value, told.line, "",
                told.code,
            ))  # fmt: skip

    def decline(self, name: str, reason: Reason) -> None:
        """Say of the module called `name`, "" for the model, why it, or more of it, is not fused."""
        self.note(SiteReport("", name, "declined", str(reason), advice=reason.advice(), reason_code=reason.code.name))

    def roll_back(self, why: Reason, names: Collection[str]) -> bool:
        """Nothing is fused any more in the modules of these names; whether anything was."""
        fused = [key for key, site in self._sites.items() if site.status == "fused" and site.module in names]
        for key in fused:
            self._sites[key] = replace(
                self._sites[key], status="rolled-back", reason=str(why), kernel="", reason_code=why.code.name
            )
        return bool(fused)


def may_hold_a_site(module: nn.Module) -> bool:
    """Whether a forward that was not looked into, or what it calls, may hold something that could have been fused."""
    cls = plain_class(type(module))
    forward = inspect.unwrap(vars(definer_of(cls) or cls).get("forward", cls.forward))
    return not isinstance(forward, types.FunctionType) or _may_hold_a_site(forward, cls, _HELPERS)


def _may_hold_a_site(function: types.FunctionType, cls: type, depth: int) -> bool:
    try:
        if _WORTH_A_WORD.search(inspect.getsource(function)):
            return True
    except (OSError, TypeError):
        return True
    names = function.__code__.co_names if depth else ()
    helpers = [f for n in names for f in (inspect.getattr_static(cls, n, None), function.__globals__.get(n))]
    plain = [inspect.unwrap(getattr(f, "__func__", f)) for f in helpers if f is not None]
    return any(_may_hold_a_site(f, cls, depth - 1) for f in plain if _is_the_users(f))


def _is_the_users(function: Any) -> TypeGuard[types.FunctionType]:
    return isinstance(function, types.FunctionType) and is_users(function.__code__.co_filename)


def _site_report(
    name: str, found: Found, verdict: Verdict | None, status: str = "", why: Reason | None = None
) -> SiteReport:  # fmt: skip
    file, line = (found.place.file, found.place.line) if found.place else ("", None)
    status = status or ("fused" if found.fused else "declined")
    error = verdict.max_error if verdict and found.fused else None
    told = found.refusal or Refusal("")
    code = why.code.name if why else told.code
    return SiteReport(
        found.rule, name, status, _reason_of(found, verdict, why), found.kernel, error, file, line,  # type: ignore[arg-type]
        told.advice, told.value, told.line, found.mask, code,
    )  # fmt: skip


def _reason_of(found: Found, verdict: Verdict | None, why: Reason | None) -> str:
    """The words about a place; of what is fused, also on which part of the call it was checked in double."""
    words = str(why or found.reason)
    if why is not None or not found.fused or verdict is None or not verdict.size:
        return words
    return "; ".join(part for part in (words, f"checked in double on {verdict.size}, in its own dtype on all") if part)
