"""Collects the reports of all sites of a session."""

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
from autofuse.fx.trace.source_lines import is_user_file
from autofuse.fx.trace.twin import plain_class
from autofuse.fx.trace.values import Untraceable
from autofuse.match.refusals import Refusal, unread
from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.results.sites import PART, Report, SiteReport, Status
from autofuse.results.step_times import step_mode

_LOG = logging.getLogger("autofuse")
_PRECEDENCE = ("fused", "rolled-back", "declined")  # of several reports of a site, the first of these holds

_HELPERS = 3  # the depth to which called functions are searched
_INTERESTING_CODE = re.compile(r"softmax|@|matmul|einsum|bmm|rsqrt|\.mean\(|\.var\(|tanh|erf|sigmoid|gelu|silu|norm")


class Ledger:
    """The site reports of one model."""

    def __init__(self) -> None:
        self._sites: dict[Hashable, SiteReport] = {}
        self.training = True  # the current mode of the model
        # _timed: by mode, whether a site is fused and its times. _parts: the parent's site that contains a module.
        self._timed: defaultdict[Hashable, dict[bool, tuple[bool, str]]] = defaultdict(dict)
        self._parts: dict[str, str] = {}

    def report(self, names: tuple[str, ...]) -> Report:
        """The sites of the modules `names`, and those of the model as a whole, in the order of the names."""
        order = {"": -1} | {name: place for place, name in enumerate(names)}
        sites = [self._with_times(site) for site in self._sites.values() if site.module in order]
        return Report(tuple(sorted(sites, key=lambda s: (order[s.module], s.line or 0))))

    def _with_times(self, site: SiteReport) -> SiteReport:
        """A site report with its times: in the current mode of the model, and in the other if they differ."""
        if site.status == "fused" and site.module in self._parts and not site.reason.startswith(PART):
            return replace(site, reason=self._parts[site.module])
        timed = self._timed.get(_key(site), {})
        if site.status == "rolled-back" or not timed:
            return site
        if len({clause for _, clause in timed.values()}) == 1 and len(timed) == 2:
            return replace(site, reason=timed[True][1])
        parts = {mode: f"{step_mode(mode)}: {words}" for mode, (_, words) in timed.items()}
        own, other = self.training, not self.training
        if site.status == "fused" and all(fused for fused, _ in timed.values()) and own in timed:
            choice = "; ".join(filter(None, (parts.get(other), site.choice)))
            return replace(site, reason=timed[own][1], choice=choice)
        return replace(site, reason="; ".join(parts[mode] for mode in (own, other) if mode in parts))

    def log(self, model: str, seconds: float) -> None:
        """Log a summary, each site at level DEBUG, and each rollback as a warning."""
        report = Report(tuple(self._sites.values()))
        for site in report:
            level = logging.WARNING if site.status == "rolled-back" else logging.DEBUG
            what = site.kernel if site.status == "fused" else site.reason
            _LOG.log(level, "%s: %s %s %s: %s", model, site.module or "(model)", site.rule, site.status, what)
        _LOG.info("%s: %s, in %.1f s.", model, report.summary, seconds)

    def note(self, site: SiteReport) -> None:
        """Add the report of a site."""
        key = _key(site)
        known = self._sites.get(key)
        if known is None or _PRECEDENCE.index(site.status) < _PRECEDENCE.index(known.status):
            self._sites[key] = site

    def note_slower(self, site: SiteReport, modes: Iterable[bool]) -> None:
        """Add a site that gains nothing in these modes (True is training). It may be fused in the other mode."""
        self.note(site)
        self._timed[_key(site)].update(dict.fromkeys(modes, (False, site.reason)))

    def note_part(self, name: str, rule: str, parent: str) -> None:
        """Record that the module `name` is no longer called, because a site of `rule` in `parent` computes it."""
        self._parts[name] = f"{PART}{rule} in {parent or 'the model'}"

    def note_plan(
        self, name: str, plan: ModulePlan, verdict: Verdict | None, fused_elsewhere: set[str], replaced: set[str],
        training: bool,
    ) -> None:  # fmt: skip
        """Add the sites of a plan for a module in one mode.

        Args:
            name: The module's name.
            plan: The plan.
            verdict: The verdict on it.
            fused_elsewhere: The rules of the module's narrow forwards. Near misses of these are not reported.
            replaced: The fallback rules whose places a narrow forward fuses by a wider rule.
            training: The mode.
        """
        self._sites.pop(("", name, "", None, str(because(outcomes.NEVER_CALLED))), None)
        for found in plan.found:
            if found.rule not in (replaced if found.fused else fused_elsewhere):
                site = _site_report(name, found, verdict)
                self.note(site)
                if found.fused and found.excerpt is not None and found.reason:
                    self._timed[_key(site)][training] = (True, found.reason)
        for found, why in verdict.failed if verdict else ():
            self.note(_site_report(name, found, None, "rolled-back", why))

    def note_untraceable(self, name: str, module: nn.Module, error: Untraceable) -> None:
        """Add the reason why a module was not traced, if it may contain a site."""
        self._sites.pop(("", name, "", None, str(because(outcomes.NEVER_CALLED))), None)
        if may_hold_a_site(module):
            refusal = unread(error.reason, author_text_at(error.place))
            file = error.place.file if error.place else ""
            self.note(SiteReport(
                "", name, "declined", refusal.reason, "", None, file, refusal.line, refusal.advice, refusal.value,
                refusal.line, "", refusal.code,
            ))  # fmt: skip

    def decline(self, name: str, reason: Reason) -> None:
        """Add the reason why the module `name` ("" for the model) is not fused."""
        self.note(SiteReport("", name, "declined", str(reason), advice=reason.advice(), reason_code=reason.code.name))

    def roll_back(self, why: Reason, names: Collection[str], status: Status = "rolled-back") -> bool:
        """Mark all fused sites in these modules as rolled back or declined. Returns whether there were any."""
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
    """Whether an untraced forward, or a function that it calls, may contain a site."""
    cls = plain_class(type(module))
    forward = inspect.unwrap(vars(definer_of(cls) or cls).get("forward", cls.forward))
    return not isinstance(forward, types.FunctionType) or _may_hold_a_site(forward, module, _HELPERS)


def _may_hold_a_site(function: types.FunctionType, module: nn.Module, depth: int) -> bool:
    try:
        if _INTERESTING_CODE.search(inspect.getsource(function)):
            return True
    except (OSError, TypeError):
        return True
    names = function.__code__.co_names if depth else ()
    helpers = [f for n in names for f in (inspect.getattr_static(module, n, None), function.__globals__.get(n))]
    plain = [inspect.unwrap(getattr(f, "__func__", f)) for f in helpers if f is not None]
    return any(_may_hold_a_site(f, module, depth - 1) for f in plain if _is_user_function(f))


def _is_user_function(function: Any) -> TypeGuard[types.FunctionType]:
    return isinstance(function, types.FunctionType) and is_user_file(function.__code__.co_filename)


def _site_report(
    name: str, found: Found, verdict: Verdict | None, status: str = "", why: Reason | None = None
) -> SiteReport:  # fmt: skip
    file, line = (found.place.file, found.place.line) if found.place else ("", None)
    status = status or ("fused" if found.fused else "declined")
    error = verdict.max_error if verdict and found.fused else None
    refusal = found.refusal or Refusal("")
    code = why.code.name if why else refusal.code
    return SiteReport(
        found.rule, name, status, str(why or found.reason), found.kernel, error, file, line,  # type: ignore[arg-type]
        refusal.advice, refusal.value, refusal.line, found.mask, code, _choice_and_check(found, verdict, why),
    )  # fmt: skip


def _choice_and_check(found: Found, verdict: Verdict | None, why: Reason | None) -> str:
    """The reason why the kernel of a fused site was chosen, and on which part of the call it was checked in float64."""
    if why is not None or not found.fused:
        return ""
    part = verdict.size if verdict is not None else ""
    where = part if " alone, for " in part else f"{part}, in its own dtype on all"
    checked = f"checked in float64 on {where}" if part else ""
    return "; ".join(filter(None, (found.choice, checked)))
