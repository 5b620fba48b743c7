"""Finds where each rule would apply in a model, or why it does not: the planning part of optimize, without installing.

It runs nothing for real unless a forward needs numbers, and changes nothing. It does not know costs.
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
from autofuse.fx.trace.ambient_state import undisturbed_randomness
from autofuse.fx.trace.external_state import unchanged_outside
from autofuse.fx.trace.module_calls import calls_in_mode
from autofuse.fx.trace.sharding import postponed
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.values import Untraceable
from autofuse.fx.trace.wrappers import unwrapped, user_modules
from autofuse.match.pattern import LoadedRule
from autofuse.results.profile import PlaceStatus
from autofuse.results.sites import SiteReport

OPERATIONS = "autofuse.ops."
_PART = "as part of "


class PlannedPlace(NamedTuple):
    """A rule and a module in whose forward the rule applies, or nearly does.

    operation: the fused operation.
    found, plan: the results of planning; None if the reason comes from the report of an optimized model, or if the
    module could not be read.
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
    """The sites of a model, and the planner that holds the fakes on which they were found.

    calls: how each module is called, on fakes.
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
    """Return the sites of `model`, in its current mode (train or eval), in the order of its modules.

    An optimized model is read as it was before, with the reasons of its report.

    Args:
        model: The model.
        inputs: Example inputs.
        call: Positional and keyword arguments, in place of `inputs`.
        select: As in optimize.
        ignore: As in optimize.
        modules: As in optimize.

    Raises:
        TypeError, ValueError: As in optimize.
    """
    inner = unwrapped(model)
    named = user_modules(inner)
    options = options_of(named, inputs, select, ignore, modules, False, False, None)
    if call is not None:
        options = replace(options, call=call)
    if options.call is None:
        return Reading(notes=["No example inputs are known, so no rule could be tried: pass inputs."])
    if why := postponed(inner):
        return Reading(notes=[f"No rule was tried: {why}."])
    states, ledger = states_of(named, options.wants), Ledger()
    with undisturbed_randomness(), unchanged_outside():
        reading = _read(inner, options.call, options.rules, states, ledger)
    names = {state.name for state in states.values()}
    reading.sites += _unread(ledger, names)
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
    """Yield the sites of the plans that would be installed. A narrow forward that a caller uses takes precedence."""
    narrowed = {(child, dropped) for plan in planner.plans.values() for child, dropped in plan.narrowed}
    better = {child for child, _ in narrowed}
    seen = set()
    for (module, (_, dropped)), plan in planner.plans.items():
        if module not in names or (dropped and (module, dropped) not in narrowed):
            continue
        if not dropped and module in better and any(m is module and d for m, (_, d) in planner.plans):
            fused = {
                f.rule for (m, (_, d)), p in planner.plans.items() if m is module and d for f in p.found if f.fused
            }
        else:
            fused = set()
        for found in plan.found:
            key = (module, found.rule, found.place, found.fused)
            if key in seen or (not dropped and found.rule in fused):
                continue
            seen.add(key)
            yield _site(names[module], found, plan)


def _site(name: str, found: Found, plan: ModulePlan) -> PlannedPlace:
    file, line = (found.place.file, found.place.line) if found.place else ("", None)
    part = found.reason.removeprefix(_PART) if found.fused and found.excerpt is None else ""
    operation = OPERATIONS + found.excerpt.operation if found.excerpt else ""
    status: PlaceStatus = "applies" if found.fused else "declined"
    larger = _place_name(part, name) if part else ""
    code = found.refusal.code if found.refusal else ""
    return PlannedPlace(name, found.rule, status, found.reason, operation, file, line, found, plan, larger, code)


def _with_larger_places(sites: list[PlannedPlace], names: Mapping[nn.Module, str]) -> Iterator[PlannedPlace]:
    """Mark places inside a larger place: in its own module, or in a child that the fused operation does not call."""
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
    """Return the name of an operation of autofuse.ops; "" for anything else."""
    name = getattr(target, "__name__", "")
    return name if getattr(ops, name, None) is target else ""


def _ancestors(name: str) -> Iterator[str]:
    """Yield a module's name and the names of the modules around it, from the inside out."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _unread(ledger: Ledger, names: set[str]) -> Iterator[PlannedPlace]:
    """Yield the modules that could not be read, with the reason."""
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
    """Yield the sites with the status from optimize's report, and then the report's other sites."""
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
