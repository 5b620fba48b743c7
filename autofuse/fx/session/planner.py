"""Plans for the modules of one capture: each traced and rewritten once, and children asked for what their callers read.

Knows how calls become plans; whether a plan holds, and what is installed, is decided elsewhere.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import nn

from autofuse.display.progress import Tell
from autofuse.fx.install.codegen import Variant
from autofuse.fx.rewrite.module_plan import Found, ModulePlan, SiteKey, plan_trace
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.options import likeness
from autofuse.fx.session.state import Exclusions, ModuleState
from autofuse.fx.trace.equal_modules import Structure, held_once
from autofuse.fx.trace.module_calls import Calls
from autofuse.fx.trace.own_forward import why_kept
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.stand_ins import Forms, fake_world, forms
from autofuse.fx.trace.tracer import ForwardArguments, ForwardTrace, traced
from autofuse.fx.trace.twin import Twins, set_mode
from autofuse.fx.trace.values import Untraceable
from autofuse.match.pattern import LoadedRule
from autofuse.measure.created_bytes import BytesByDevice
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because
from autofuse.rule import RuleError
from autofuse.torch_private import FakeTensorMode

_Key = tuple[bool, frozenset[Path]]  # mode, what is left out
Plans = dict[bool, ModulePlan]  # mode -> plan of the whole forward
_ADDRESS = re.compile(r"\d{9}")


class Planner:
    """Plans for the calls of one capture, each made once."""

    def __init__(
        self,
        rules: tuple[LoadedRule, ...],
        states: Mapping[nn.Module, ModuleState],
        calls: dict[bool, Calls],
        sharded: Forms | None = None,
        made: Mapping[nn.Module, BytesByDevice] | None = None,
    ) -> None:
        """`calls`: for each mode, how each module is called. Only modules with a state are planned. `made`: the bytes
        of the tensors that operators made in a module's call, where that is known.
        """
        self.made = made or {}
        self.rules, self.states, self.calls = rules, states, calls
        self._sharded = sharded or {}
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.plans: dict[tuple[nn.Module, _Key], ModulePlan] = {}
        self.untraceable: list[tuple[nn.Module, Untraceable]] = []
        self.failed: list[tuple[nn.Module, Reason]] = []  # where autofuse itself failed, or the code of a rule
        self.passing: set[nn.Module] = set()  # what stands in the way there may be over at the next call
        self._given: dict[tuple[nn.Module, bool], ForwardArguments] = {}  # calls that a caller's trace makes of a child
        self._inside: dict[Hashable, ForwardTrace | None] = {}
        self._structures: dict[tuple[nn.Module, bool], Structure] = {}
        self._first: dict[Hashable, nn.Module] = {}  # of the modules that are equal, the one that was planned

    @cached_property
    def sharded(self) -> Forms:
        """What the tensors that are elsewhere now will be."""
        return forms(m for mode in self.calls.values() for m in mode) | self._sharded

    @cached_property
    def _once(self) -> frozenset[int]:
        return held_once(self.states)

    @cached_property
    def world(self) -> Twins:
        """The stand-ins that all traces of this capture run on."""
        return fake_world(self.mode, self.sharded)

    def plan(
        self, module: nn.Module, training: bool, dropped: frozenset[Path], call: ForwardArguments | None = None
    ) -> ModulePlan | None:
        """The plan for a call of `module`; None where its forward cannot be traced."""
        key = (module, (training, dropped))
        if key not in self.plans and call is None and self._taken_over(module, training, dropped):
            return self.plans[key]
        if key not in self.plans:
            if call is not None:
                self._given.setdefault((module, training), call)
            known = self.calls[training].get(module) or call or self._given.get((module, training))
            made = self._made(module, training, dropped, known)
            if made is None:
                return None
            self.plans[key] = made
        return self.plans[key]

    def _taken_over(self, module: nn.Module, training: bool, dropped: frozenset[Path]) -> bool:
        """Whether an equal module was planned for an equal call: its plans are taken over."""
        mine = self._structure(module, training)
        if mine is None:
            return False
        other = self._first.setdefault((training, mine.key), module)
        theirs = self._structure(other, training)
        if other is module or theirs is None:
            return False
        double = {path: m for m, path in mine.paths.items()}
        doubles = {m: double[path] for m, path in theirs.paths.items() if path in double}
        if any(self._excluded(m) != self._excluded(d) for m, d in doubles.items()):
            return False
        made = self._doubled(other, training, dropped, theirs, doubles)
        for key, plan in (made or {}).items():
            self.plans.setdefault(key, plan)
        return made is not None

    def _excluded(self, module: nn.Module) -> Exclusions | None:
        return self.states[module].exclusions if module in self.states else None

    def _structure(self, module: nn.Module, training: bool) -> Structure | None:
        """What a module and its call are like; None where it is equal to no other."""
        call = self.calls[training].get(module)
        if call is None or module not in self.states or len(self.calls[training]) < 2:
            return None
        if (module, training) not in self._structures:
            self._structures[module, training] = Structure(module, call, self._once)
        found = self._structures[module, training]
        return found if found.key is not None else None

    def _doubled(
        self, module: nn.Module, training: bool, dropped: frozenset[Path], of: Structure,
        doubles: Mapping[nn.Module, nn.Module],
    ) -> dict[tuple[nn.Module, _Key], ModulePlan] | None:  # fmt: skip
        """The plan of `module`, and of the children that it narrows, for those that are equal; None where one is not.

        A guard that names something of the planned module itself would hold for that one alone.
        """
        plan = self.plans.get((module, (training, dropped)))
        if plan is None or module not in doubles or any(child not in doubles for child, _ in plan.narrowed):
            return None
        named = () if plan.variant is None else (*plan.variant.names, *plan.variant.globals)
        if any(of.may_own(value) for _, value in named) or plan.variant and _names_an_address(plan.variant):
            return None
        narrowed = [(doubles[child], left_out) for child, left_out in plan.narrowed]
        made = {(doubles[module], (training, dropped)): replace(
            plan, module=doubles[module], found=list(plan.found), narrowed=narrowed)}  # fmt: skip
        for child, left_out in plan.narrowed:
            below = self._doubled(child, training, left_out, of, doubles)
            if below is None:
                return None
            if (given := self._given.get((child, training))) is not None:
                self._given.setdefault((doubles[child], training), given)
            made |= below
        return made

    def plan_again(self, module: nn.Module, exclusions: Exclusions) -> None:
        """Plan every planned call of `module` anew, without what is excluded now."""
        self.states[module].exclusions = exclusions
        for key in [k for k in self.plans if k[0] is module]:
            del self.plans[key]
            self.plan(module, *key[1])

    def leave_out(self, module: nn.Module, sites: Collection[SiteKey], training: bool) -> None:
        """Plan `module` anew in one mode, without these sites; callers that read part of its result are planned anew.

        Where no caller needs a narrow forward of the module any more, it has none.
        """
        state = self.states[module]
        callers = [m for (m, (mode, _)), p in self.plans.items() if mode is training and module in _children_of(p)]
        for affected in (module, *callers):
            self.states[affected].slower_modes.add(training)
        self.plan_again(module, state.exclusions.plus_in(training, sites))
        for caller in dict.fromkeys(callers):
            self.plan_again(caller, self.states[caller].exclusions)
        needed = {(c, d) for (_, (mode, _)), p in self.plans.items() if mode is training for c, d in p.narrowed}
        for key in [k for k in self.plans if k[0] is module and k[1][0] is training and k[1][1]]:
            if (module, key[1][1]) not in needed:
                del self.plans[key]

    def whole(self, module: nn.Module) -> Plans:
        """The plans for calls of `module` whose whole result is read, by mode."""
        return {training: p for (m, (training, dropped)), p in self.plans.items() if m is module and not dropped}

    def in_mode(self, module: nn.Module, training: bool) -> dict[frozenset[Path], ModulePlan]:
        """The plans for calls of `module` in one mode, by what is left out."""
        return {dropped: p for (m, (mode, dropped)), p in self.plans.items() if m is module and mode is training}

    def fused_sites(self, module: nn.Module) -> dict[SiteKey, Found]:
        """What is fused in calls of `module` whose whole result is read, by where it is."""
        return {f.key: f for plan in self.whole(module).values() for f in plan.found if f.fused}

    def narrowed(self, plans: Iterable[ModulePlan]) -> Iterator[nn.Module]:
        """The children, and theirs, whose narrow forwards these plans call."""
        todo = list(plans)
        while todo:
            for child, dropped in todo.pop().narrowed:
                yield child
                todo += [p for (m, (_, d)), p in self.plans.items() if m is child and d == dropped]

    def forget(self, module: nn.Module) -> None:
        """Plan nothing for `module`."""
        for key in [k for k in self.plans if k[0] is module]:
            self.plans[key] = ModulePlan(module)

    def narrow_rules(self, module: nn.Module) -> set[str]:
        """The rules that apply in `module` where part of its result is left out, and those that fill in for them."""
        found = {f.rule for (m, (_, d)), p in self.plans.items() if m is module and d for f in p.found if f.fused}
        return found | {r.rule.code for r in self.rules if found and r.rule.fallback}

    def forwards(self, module: nn.Module, dropped: frozenset[Path]) -> Hashable:
        """What tells the planned narrow forwards of a module apart."""
        plans = [p for (m, (_, d)), p in self.plans.items() if m is module and d == dropped]
        return tuple((p.forward, *(self.forwards(c, d) for c, d in p.narrowed)) for p in plans if p.variant)

    def _made(
        self, module: nn.Module, training: bool, dropped: frozenset[Path], call: ForwardArguments | None
    ) -> ModulePlan | None:
        state = self.states.get(module)
        if state is None or call is None:
            return None
        try:
            refuse_where_kept(module)
            return self._rewritten(module, training, dropped, call, state.exclusions)
        except Untraceable as error:
            self.passing |= {module} if error.passing else set()
            self.untraceable.append((module, error))
        except Exception as error:
            self.failed.append((module, reason_of_failure(error, "reading and rewriting it")))
            culprit = error.rule if isinstance(error, RuleError) else ""
            if culprit and culprit not in state.exclusions.rules:
                state.exclusions = state.exclusions.plus(rules=[culprit])
                return self._made(module, training, dropped, call)
        return None

    def _rewritten(
        self, module: nn.Module, training: bool, dropped: frozenset[Path], call: ForwardArguments, without: Exclusions
    ) -> ModulePlan:
        twin = self.world.of(module)
        set_mode(twin, training)
        trace = traced(module, *copy_of_call(call), self.world, self.mode, dropped)
        with torch.enable_grad():
            rules = tuple(r for r in self.rules if r.rule.code not in without.rules)
            return plan_trace(trace, rules, without.sites_in(training), _Children(self, training))

    def trace_child(self, child: nn.Module, call: ForwardArguments) -> ForwardTrace | None:
        """What a child does in a call, if that can be written down; nobody rewrites it."""
        key = (child, self.world.of(child).training, likeness(call))
        if key not in self._inside:
            try:
                self._inside[key] = traced(child, *copy_of_call(call), self.world, self.mode)
            except Untraceable:
                self._inside[key] = None
        return self._inside[key]


def _names_an_address(variant: Variant) -> bool:
    """Whether a guard or the code holds a number that may be the id of an object: `SCALES[id(self)]`."""
    return any(_ADDRESS.search(text) for text in (variant.source, *variant.tests, *variant.inputs))


def refuse_where_kept(module: nn.Module) -> None:
    """Raises Untraceable where the class of `module` cannot be given another forward."""
    if why := why_kept(type(module)):
        raise Untraceable(because(forwards.KEPT_BY_CLASS, kind=type(module).__name__, why=why))


def plan_calls(
    rules: tuple[LoadedRule, ...], states: Mapping[nn.Module, ModuleState], calls: dict[bool, Calls], tell: Tell,
    made: Mapping[nn.Module, BytesByDevice] | None = None,
) -> Planner:  # fmt: skip
    """Plans for every module of `states` that is called, in both modes. made: as of Planner."""
    planner = Planner(rules, states, calls, made=made)
    called = [m for m in states if any(m in c for c in calls.values())]
    for module in tell("reading", called, len(called)):
        for training in (False, True):
            if module in calls[training]:
                planner.plan(module, training, frozenset())
    return planner


def bypassed_children(planner: Planner) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """The modules that no rewritten forward of their only parent calls, with the rule that reads them and the parent.

    What is fused in them is fused as part of the parent's place.
    """
    holders = Counter(child for module in planner.states for child in set(module.children()))
    for parent in dict.fromkeys(m for m, _ in planner.plans):
        plans = [p for (m, _), p in planner.plans.items() if m is parent]
        if any(p.variant is None for p in plans):
            continue
        rule = next((f.rule for p in plans for f in p.found if f.fused and f.excerpt), "")
        for path in frozenset.intersection(*(p.bypassed for p in plans)):
            top = parent.get_submodule(path)
            yield from ((m, rule, parent) for m in top.modules() if m in planner.states and holders[m] == 1 and rule)


class _Children:
    """What a planner tells about the children of a module that is planned for one mode."""

    def __init__(self, planner: Planner, training: bool) -> None:
        self._planner, self._training = planner, training
        self.trace_child = planner.trace_child

    def plan_narrow(self, child: nn.Module, call: ForwardArguments, unread: frozenset[Path]) -> ModulePlan | None:
        whole = self._planner.plan(child, self._training, frozenset(), call)
        part = self._planner.plan(child, self._training, unread, call)
        return part if part and whole and _gains(part) > _gains(whole) else None

    def plan_without_dropout(self, child: nn.Module, call: ForwardArguments, dropped: frozenset[Path]) -> bool:
        plan = self._planner.plan(child, self._training, dropped, call)
        return plan is not None and plan.variant is not None

    def discard_plan(self, child: nn.Module, dropped: frozenset[Path]) -> None:
        self._planner.plans.pop((child, (self._training, dropped)), None)


def _children_of(plan: ModulePlan) -> list[nn.Module]:
    """The children whose narrow forwards a plan calls."""
    return [child for child, _ in plan.narrowed]


def copy_of_call(call: ForwardArguments) -> ForwardArguments:
    """The containers of a call made anew: a trace may run forwards that change them."""
    return copy.copy(call[0]), dict(call[1])


def _gains(plan: ModulePlan) -> int:
    """How much a plan is worth: attention without its probabilities is worth more than their softmax alone."""
    return sum(f.benefit for f in plan.found if f.fused) + len(plan.narrowed)
