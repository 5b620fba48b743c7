"""What a session found, place by place, and the words for it. Knows plans and verdicts; decides nothing."""

from __future__ import annotations

import inspect
import logging
import re
import types
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace
from typing import Any, TypeGuard

from torch import nn

from autofuse.fx.rewrite.author_text import author_text_at
from autofuse.fx.rewrite.module_plan import Found, ModulePlan
from autofuse.fx.session.site_checks import Verdict
from autofuse.fx.trace.own_forward import definer_of
from autofuse.fx.trace.source_lines import is_users
from autofuse.fx.trace.twin import plain_class
from autofuse.fx.trace.values import Untraceable
from autofuse.match.refusals import Refusal, unread
from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.results.sites import PART, Report, SiteReport, Status
from autofuse.results.step_times import step_mode

_LOG = logging.getLogger("autofuse")
_RANK = ("fused", "rolled-back", "declined")  # of several words about one place, the best news stands

_HELPERS = 3  # how deep functions that a forward calls are looked into
_WORTH_A_WORD = re.compile(r"softmax|@|matmul|einsum|bmm|rsqrt|\.mean\(|\.var\(|tanh|erf|sigmoid|gelu|silu|norm")


class Ledger:
    """The words about one model's modules."""

    def __init__(self) -> None:
        self._sites: dict[Hashable, SiteReport] = {}
        self.training = True  # the mode that the model is in
        # By mode whether a place is fused and what timing said; of modules that are not called any more, what runs.
        self._timed: defaultdict[Hashable, dict[bool, tuple[bool, str]]] = defaultdict(dict)
        self._parts: dict[str, str] = {}

    def report(self, names: tuple[str, ...]) -> Report:
        """What was found in the modules called `names`, and what is about no module of them all, in that order."""
        order = {"": -1} | {name: place for place, name in enumerate(names)}
        sites = [self._with_times(site) for site in self._sites.values() if site.module in order]
        return Report(tuple(sorted(sites, key=lambda s: (order[s.module], s.line or 0))))

    def _with_times(self, site: SiteReport) -> SiteReport:
        """A place with what timing said of it: in the mode that the model is in, and in the other where it differs."""
        if site.status == "fused" and site.module in self._parts and not site.reason.startswith(PART):
            return replace(site, reason=self._parts[site.module])
        timed = self._timed.get(_key(site), {})
        if site.status == "rolled-back" or not timed:
            return site
        if len({words for _, words in timed.values()}) == 1 and len(timed) == 2:
            return replace(site, reason=timed[True][1])
        said = {mode: f"{step_mode(mode)}: {words}" for mode, (_, words) in timed.items()}
        own, other = self.training, not self.training
        if site.status == "fused" and all(fused for fused, _ in timed.values()) and own in timed:
            choice = "; ".join(filter(None, (said.get(other), site.choice)))
            return replace(site, reason=timed[own][1], choice=choice)
        return replace(site, reason="; ".join(said[mode] for mode in (own, other) if mode in said))

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
        key = _key(site)
        known = self._sites.get(key)
        if known is None or _RANK.index(site.status) < _RANK.index(known.status):
            self._sites[key] = site

    def note_slower(self, site: SiteReport, modes: Iterable[bool]) -> None:
        """Add a place that gains nothing in these modes (True is training); it may be fused in the other one."""
        self.note(site)
        self._timed[_key(site)].update(dict.fromkeys(modes, (False, site.reason)))

    def note_part(self, name: str, rule: str, parent: str) -> None:
        """The module called `name` is not called any more: a place of `rule` in the one called `parent` computes it."""
        self._parts[name] = f"{PART}{rule} in {parent or 'the model'}"

    def note_plan(
        self, name: str, plan: ModulePlan, verdict: Verdict | None, fused_elsewhere: set[str], training: bool
    ) -> None:
        """Add what a plan for the module called `name` holds, which is for one mode."""
        self._sites.pop(("", name, "", None, str(because(outcomes.NEVER_CALLED))), None)
        for found in plan.found:
            if found.fused or found.rule not in fused_elsewhere:
                site = _site_report(name, found, verdict)
                self.note(site)
                if found.fused and found.excerpt is not None and found.reason:
                    self._timed[_key(site)][training] = (True, found.reason)
        for found, why in verdict.failed if verdict else ():
            self.note(_site_report(name, found, None, "rolled-back", why))

    def note_untraceable(self, name: str, module: nn.Module, error: Untraceable) -> None:
        """Say why a module was not looked into, if it might have held something."""
        self._sites.pop(("", name, "", None, str(because(outcomes.NEVER_CALLED))), None)
        if may_hold_a_site(module):
            told = unread(error.reason, author_text_at(error.place))
            file = error.place.file if error.place else ""
            self.note(SiteReport(
                "", name, "declined", told.reason, "", None, file, told.line, told.advice, told.value, told.line, "",
                told.code,
            ))  # fmt: skip

    def decline(self, name: str, reason: Reason) -> None:
        """Say of the module called `name`, "" for the model, why it, or more of it, is not fused."""
        self.note(SiteReport("", name, "declined", str(reason), advice=reason.advice(), reason_code=reason.code.name))

    def roll_back(self, why: Reason, names: Collection[str], status: Status = "rolled-back") -> bool:
        """Nothing is fused any more in the modules of these names; whether anything was."""
        fused = [key for key, site in self._sites.items() if site.status == "fused" and site.module in names]
        for key in fused:
            self._timed.pop(key, None)
            self._sites[key] = replace(
                self._sites[key], status=status, reason=str(why), kernel="", choice="", reason_code=why.code.name
            )
        return bool(fused)


def _key(site: SiteReport) -> Hashable:
    return site.rule, site.module, site.file, site.line, site.reason if not site.rule else ""


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
        found.rule, name, status, str(why or found.reason), found.kernel, error, file, line,  # type: ignore[arg-type]
        told.advice, told.value, told.line, found.mask, code, _details_of(found, verdict, why),
    )  # fmt: skip


def _details_of(found: Found, verdict: Verdict | None, why: Reason | None) -> str:
    """Of what is fused, why its kernel was taken, and on which part of the call it was checked in double."""
    if why is not None or not found.fused:
        return ""
    part = verdict.size if verdict is not None else ""
    where = part if " alone, for " in part else f"{part}, in its own dtype on all"
    checked = f"checked in double on {where}" if part else ""
    return "; ".join(filter(None, (found.choice, checked)))
