"""Finds where each rule would apply in a model, or why it does not. It plans as optimize does, and installs nothing.

This file plans a model, or uses the report of an optimized one. It runs code for real only if a forward needs numbers,
and changes nothing. It does not depend on the cost of a site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from autofuse import ops
from autofuse.fx.rewrite.module_plan import Found, ModulePlan
from autofuse.fx.session.ledger import Ledger
from autofuse.fx.session.optimize import report
from autofuse.fx.session.options import options_of
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.state import ModuleState, states_of
from autofuse.fx.trace.ambient_state import preserve_generators
from autofuse.fx.trace.external_state import restore_external_state
from autofuse.fx.trace.module_calls import calls_in_mode
from autofuse.fx.trace.sharding import why_not_yet_traceable
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.values import Untraceable
from autofuse.fx.trace.wrappers import unwrap, user_modules
from autofuse.match.pattern import LoadedRule
from autofuse.results.profile import PlaceStatus
from autofuse.results.sites import SiteReport

OPERATIONS = "autofuse.ops."
_PART = "as part of "


class PlannedPlace(NamedTuple):
    """One rule and one module in whose forward it applies or nearly applies.

    Attributes:
        operation: the fused operation, installed or possible.
        found: the site; None if the text comes from the report of an optimized model, or the module could not be read.
        plan: the plan of the module; None likewise.
        part_of: the rule and the module of a larger place that contains this one. Then this one is not fused by itself.
    """

    fqn: str
    rule: str
    status: PlaceStatus
    reason: str = ""
    operation: str = ""
    file: str = ""
    line: int | None = None
    found: Found | None = None
    plan: ModulePlan | None = None
    part_of: str = ""
    reason_code: str = ""


@dataclass
class Reading:
    """The sites of a model, and the planner that holds the fake tensors of their trace.

    Attributes:
        calls: how each module is called, on fake tensors.
        notes: why the model, or a part of it, could not be read.
    """

    sites: list[PlannedPlace] = field(default_factory=list)
    planner: Planner | None = None
    calls: Mapping[nn.Module, ForwardArguments] = field(default_factory=dict)
    names: Mapping[nn.Module, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_places(
    model: nn.Module, inputs: Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any] | None = None,
    *, call: ForwardArguments | None = None, select: object = None, ignore: object = None, modules: object = None,
) -> Reading:  # fmt: skip
    """The sites of `model` in its current mode (train or eval) for such inputs, in the order of its modules.

    For an optimized model, the original is read, and the statuses come from its report. Invalid arguments raise the
    errors of optimize.

    Args:
        model: the model.
        inputs: as for optimize.
        call: positional and keyword arguments, in place of `inputs`.
        select: as for optimize: the rules to try.
        ignore: as for optimize: the rules not to try.
        modules: as for optimize: the modules to read.
    """
    inner = unwrap(model)
    named = user_modules(inner)
    options = options_of(named, inputs, select, ignore, modules, False, False, None)
    if call is not None:
        options = replace(options, call=call)
    if options.call is None:
        return Reading(notes=["No example inputs are known, so no rule could be tried: pass inputs."])
    if why := why_not_yet_traceable(inner):
        return Reading(notes=[f"No rule was tried: {why}."])
    states, ledger = states_of(named, options.wants), Ledger()
    with preserve_generators(), restore_external_state():
        reading = _read(inner, options.call, options.rules, states, ledger)
    names = {state.name for state in states.values()}
    reading.sites += _unread_places(ledger, names)
    reading.sites = list(_with_larger_places(reading.sites, reading.names))
    known = report(inner)
    reading.sites = list(_with_reported_status(reading.sites, known.sites)) if known.sites else reading.sites
    order = {name: i for i, name in enumerate(s.name for s in states.values())}
    reading.sites.sort(key=lambda site: (order.get(site.fqn, -1), site.line or 0))
    return reading


def _read(
    model: nn.Module,
    call: ForwardArguments,
    rules: tuple[LoadedRule, ...],
    states: Mapping[nn.Module, ModuleState],
    ledger: Ledger,
) -> Reading:
    mode = model.training
    try:
        calls = calls_in_mode(model, call, mode)
    except Untraceable as error:
        return Reading(notes=[f"No rule was tried: {error.reason}."])
    planner = Planner(rules, states, {mode: calls, not mode: {}})
    for module in states:
        if module in calls:
            planner.plan(module, mode, frozenset())
    for module, why in planner.untraceable:
        ledger.note_untraceable(states[module].name, module, why)
    names = {module: state.name for module, state in states.items()}
    return Reading(list(_sites(planner, names)), planner, calls, names)


def _sites(planner: Planner, names: Mapping[nn.Module, str]) -> Iterator[PlannedPlace]:
    """The sites of the plans that would be installed.

    If a caller uses a narrow forward of a child, that plan counts. The child's whole forward does not run then, so its
    sites count as parts of what the narrow forward fuses: masked softmax and attention of the same scores are one
    saving.
    """
    narrowed = {(child, dropped) for plan in planner.plans.values() for child, dropped in plan.narrowed}
    narrow_rules: dict[nn.Module, list[str]] = {}
    for (module, (_, dropped)), plan in planner.plans.items():
        if dropped and (module, dropped) in narrowed:
            narrow_rules.setdefault(module, []).extend(found.rule for found in plan.found if found.fused)
    seen = set()
    for (module, (_, dropped)), plan in planner.plans.items():
        if module not in names or (dropped and (module, dropped) not in narrowed):
            continue
        instead = [] if dropped else narrow_rules.get(module, [])
        for found in plan.found:
            key = (module, found.rule, found.place, found.fused)
            if key in seen or found.rule in instead:
                continue
            seen.add(key)
            site = _site(names[module], found, plan)
            yield _as_part(site, plan, instead) if instead and found.fused and not site.part_of else site


def _as_part(site: PlannedPlace, plan: ModulePlan, instead: list[str]) -> PlannedPlace:
    """The site as a part of what the narrow forward fuses, if `plan`, of the whole forward, does not fuse it."""
    whole_rules = {found.rule for found in plan.found if found.fused}
    rule = next((rule for rule in instead if rule not in whole_rules), instead[0])
    larger = _place_name(rule, site.fqn)
    return site._replace(part_of=larger, reason=site.reason or f"{_PART}{larger}")


def _site(name: str, found: Found, plan: ModulePlan) -> PlannedPlace:
    file, line = (found.place.file, found.place.line) if found.place else ("", None)
    part = found.reason.removeprefix(_PART) if found.fused and found.excerpt is None else ""
    operation = OPERATIONS + found.excerpt.operation if found.excerpt else ""
    status: PlaceStatus = "applies" if found.fused else "declined"
    larger = _place_name(part, name) if part else ""
    code = found.refusal.code if found.refusal else ""
    return PlannedPlace(name, found.rule, status, found.reason, operation, file, line, found, plan, larger, code)


def _with_larger_places(sites: list[PlannedPlace], names: Mapping[nn.Module, str]) -> Iterator[PlannedPlace]:
    """The sites, with the larger place for each site that is a part of one.

    A fused operation may include smaller ones of its own module, and those in a child that it does not call any more.
    """
    inside: dict[tuple[str, str], str] = {}  # module and operation -> the larger place
    below: dict[str, str] = {}  # module -> the larger place that no longer calls it
    for site in sites:
        if site.found is None or site.found.excerpt is None or site.plan is None:
            continue
        larger = _place_name(site.rule, site.fqn)
        for node in site.found.excerpt.before.nodes:
            if node.op == "call_module":
                child = site.plan.module.get_submodule(str(node.target))
                below.setdefault(names.get(child, ""), larger)
            elif node.op == "call_function" and (name := _fused_name(node.target)):
                inside[site.fqn, OPERATIONS + name] = larger
    for site in sites:
        above = [name for name in _ancestors(site.fqn) if below.get(name)]
        larger = site.part_of or inside.get((site.fqn, site.operation), "") or (below[above[0]] if above else "")
        reason = site.reason or (f"{_PART}{larger}" if larger else "")
        yield site._replace(part_of=larger, reason=reason) if site.status == "applies" else site


def _place_name(rule: str, name: str) -> str:
    return f"{rule} in {name or 'the model'}"


def _fused_name(target: Any) -> str:
    """The name of an operation of autofuse.ops, "" for anything else."""
    name = getattr(target, "__name__", "")
    return name if getattr(ops, name, None) is target else ""


def _ancestors(name: str) -> Iterator[str]:
    """A module's name and the names of the modules that contain it, from the inside out."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _unread_places(ledger: Ledger, names: set[str]) -> Iterator[PlannedPlace]:
    """The modules that could not be read, with the reason."""
    for site_report in ledger.report(tuple(names)).sites:
        yield _place_of_report(site_report)


def _place_of_report(site_report: SiteReport) -> PlannedPlace:
    return PlannedPlace(
        site_report.module,
        site_report.rule,
        site_report.status,
        site_report.reason,
        "",
        site_report.file,
        site_report.line,
        reason_code=site_report.reason_code,
    )


def _with_reported_status(sites: list[PlannedPlace], known: tuple[SiteReport, ...]) -> Iterator[PlannedPlace]:
    """The sites with their status after optimize, and the sites that only its report has."""
    reports = {(s.rule, s.module, s.line): s for s in known}
    for site in sites:
        site_report = reports.pop((site.rule, site.fqn, site.line), None)
        yield (
            site
            if site_report is None
            else site._replace(
                status=site_report.status, reason=site_report.reason, reason_code=site_report.reason_code
            )
        )
    yield from map(_place_of_report, reports.values())
