"""Plans the modules of one capture. Each call is traced and rewritten once; callers ask for plans of their children."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import nn

from autofuse.display.progress import ShowProgress
from autofuse.fx.install.codegen import Variant
from autofuse.fx.rewrite.module_plan import Found, ModulePlan, SiteKey, plan_trace
from autofuse.fx.session.equal_layers import Dependence, EqualLayers, PlanKey, doubles_of, guard_on, parts_of
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.options import call_key
from autofuse.fx.session.state import Exclusions, ModuleState
from autofuse.fx.trace.equal_modules import Structure
from autofuse.fx.trace.module_calls import Calls
from autofuse.fx.trace.own_forward import why_not_replaceable
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.quiet_log import mute_fake_tensor_log
from autofuse.fx.trace.stand_ins import Forms, fake_world, forms
from autofuse.fx.trace.tracer import ForwardArguments, ForwardTrace, trace_forward
from autofuse.fx.trace.twin import IntegersRead, Twins, integers_noted, note_integers, set_mode
from autofuse.fx.trace.values import Untraceable
from autofuse.match.pattern import LoadedRule
from autofuse.measure.created_bytes import BytesByDevice
from autofuse.reasons import forwards
from autofuse.reasons.reason import Reason, because
from autofuse.rule import RuleError
from autofuse.torch_private import FakeTensorMode

_Key = tuple[bool, frozenset[Path]]  # mode, omitted parts of the result
Plans = dict[bool, ModulePlan]  # mode -> plan of the full forward
_NUMBER = re.compile(r"(?<![\d.])\d{7,}(?![\d.])")  # a whole number
_ADDRESSES = 10**12  # no size of a tensor is as large, and few objects have a smaller address


class Planner:
    """The plans for the calls of one capture.

    Attributes:
        plans: The plan of each module, mode and set of omitted parts.
        untraceable: Modules that cannot be traced, with the error.
        failed: Modules for which autofuse or a rule raised an error, with the reason.
        temporary: Modules that cannot be traced now but perhaps at a later call.
        created_bytes: The bytes that the operators in a module's call created.
    """

    def __init__(
        self,
        rules: tuple[LoadedRule, ...],
        states: Mapping[nn.Module, ModuleState],
        calls: dict[bool, Calls],
        sharded: Forms | None = None,
        created_bytes: Mapping[nn.Module, BytesByDevice] | None = None,
    ) -> None:
        """Create a planner without plans.

        Args:
            rules: The rules to apply.
            states: The states of the modules. Only modules with a state are planned.
            calls: For each mode, the call of each module.
            sharded: The forms of tensors that are not on this rank.
            created_bytes: The bytes of the tensors that operators create in a module's call, if known.
        """
        self.created_bytes = created_bytes or {}
        self.rules, self.states, self.calls = rules, states, calls
        self._sharded = sharded or {}
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.plans: dict[tuple[nn.Module, _Key], ModulePlan] = {}
        self.untraceable: list[tuple[nn.Module, Untraceable]] = []
        self.failed: list[tuple[nn.Module, Reason]] = []
        self.temporary: set[nn.Module] = set()
        self._child_calls: dict[
            tuple[nn.Module, bool], ForwardArguments
        ] = {}  # calls that a caller's trace makes of a child
        self._child_traces: dict[Hashable, tuple[ForwardTrace | None, IntegersRead]] = {}
        self._equal = EqualLayers(states, calls, lambda: self.world, self.mode, lambda key: self.plan(key[0], *key[1]))
        self._considered: list[PlanKey] = []  # the plans that the current plan has asked for

    @cached_property
    def sharded(self) -> Forms:
        """The forms of the tensors that are not on this rank now."""
        return forms(m for mode in self.calls.values() for m in mode) | self._sharded

    @cached_property
    def world(self) -> Twins:
        """The fakes on which all traces of this capture run."""
        return fake_world(self.mode, self.sharded)

    def plan(
        self, module: nn.Module, training: bool, dropped: frozenset[Path], call: ForwardArguments | None = None
    ) -> ModulePlan | None:
        """The plan for a call of a module; None if it cannot be traced.

        Args:
            module: The module.
            training: The mode.
            dropped: The parts of the result that the forward omits.
            call: The call, if the planner has none for the module.
        """
        key = (module, (training, dropped))
        self._considered.append(key)
        if key not in self.plans and call is None and self._copy_equal_plans(key):
            return self.plans[key]
        if key not in self.plans:
            if call is not None:
                self._child_calls.setdefault((module, training), call)
            known = self.calls[training].get(module) or call or self._child_calls.get((module, training))
            plan = self._build_plan(module, training, dropped, known)
            if plan is None:
                return None
            self.plans[key] = plan
        return self.plans[key]

    def _copy_equal_plans(self, key: PlanKey) -> bool:
        """Copy the plans of an equal module with an equal call. Returns whether there is one."""
        module, (training, dropped) = key
        found, mine = self._equal.representative(key), self._equal.structure(module, training)
        if found is None or mine is None:
            return False
        other, theirs = found
        doubles = doubles_of(theirs, mine)
        # Equal modules with different exclusions need different plans.
        if any(self._exclusions_of(m) != self._exclusions_of(d) for m, d in doubles.items()):
            return False
        plans = self._plans_for_equal_modules(other, training, dropped, theirs, doubles)
        if plans is None or any(self._guards_difference(p, mine, theirs) for (m, _), p in plans.items() if m is module):
            return False
        for each, plan in plans.items():
            self.plans.setdefault(each, plan)
        return True

    def _guards_difference(self, plan: ModulePlan, mine: Structure, theirs: Structure) -> bool:
        """Whether a guard requires the number of the other module."""
        tests = plan.variant.tests if plan.variant is not None else ()
        return any(guard_on(*place, theirs.integers[place]) in tests for place in mine.differing_integers(theirs))

    def _exclusions_of(self, module: nn.Module) -> Exclusions | None:
        return self.states[module].exclusions if module in self.states else None

    def _plans_for_equal_modules(
        self, module: nn.Module, training: bool, dropped: frozenset[Path], of: Structure,
        doubles: Mapping[nn.Module, nn.Module],
    ) -> dict[tuple[nn.Module, _Key], ModulePlan] | None:  # fmt: skip
        """The plans of a module and its narrow children, for equal modules; None if a child has no equal one.

        A plan with a guard on an object of the planned module is not copied, because it would fail for the others.
        """
        plan = self.plans.get((module, (training, dropped)))
        if plan is None or module not in doubles or any(child not in doubles for child, _ in plan.narrowed):
            return None
        named = () if plan.variant is None else (*plan.variant.names, *plan.variant.globals)
        if any(of.may_own(value) for _, value in named) or plan.variant and self._has_address(plan.variant, of):
            return None
        narrowed = [(doubles[child], omitted) for child, omitted in plan.narrowed]
        plans = {(doubles[module], (training, dropped)): replace(
            plan, module=doubles[module], found=list(plan.found), narrowed=narrowed)}  # fmt: skip
        for child, omitted in plan.narrowed:
            below = self._plans_for_equal_modules(child, training, omitted, of, doubles)
            if below is None:
                return None
            if (known_call := self._child_calls.get((child, training))) is not None:
                self._child_calls.setdefault((doubles[child], training), known_call)
            plans |= below
        return plans

    def _has_address(self, variant: Variant, of: Structure) -> bool:
        """Whether a guard or the code contains a number that may be the id of an object: `SCALES[id(self)]`.

        A shorter number is one only if it is the id of a part of the planned module or of its twin. Others are sizes.
        """
        texts = (variant.source, *variant.tests, *variant.inputs)
        numbers = {int(n) for text in texts for n in _NUMBER.findall(text)}
        ids = of.ids | {id(x) for m in of.paths for x in parts_of(self.world.of(m))}
        return any(n >= _ADDRESSES or n in ids for n in numbers)

    def plan_again(self, module: nn.Module, exclusions: Exclusions) -> None:
        """Plan all planned calls of a module again, with new exclusions."""
        self.states[module].exclusions = exclusions
        for key in [k for k in self.plans if k[0] is module]:
            del self.plans[key]
            self.plan(module, *key[1])

    def exclude_in_mode(self, module: nn.Module, sites: Collection[SiteKey], training: bool) -> None:
        """Plan a module and the callers of its narrow forwards again in one mode, without these sites.

        Narrow forwards without a caller are removed.
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

    def full_plans(self, module: nn.Module) -> Plans:
        """The plans for calls of a module whose full result is read, by mode."""
        return {training: p for (m, (training, dropped)), p in self.plans.items() if m is module and not dropped}

    def plans_in_mode(self, module: nn.Module, training: bool) -> dict[frozenset[Path], ModulePlan]:
        """The plans for calls of a module in one mode, by the omitted parts."""
        return {dropped: p for (m, (mode, dropped)), p in self.plans.items() if m is module and mode is training}

    def fused_sites(self, module: nn.Module) -> dict[SiteKey, Found]:
        """The fused sites in calls of a module whose full result is read."""
        return {f.key: f for plan in self.full_plans(module).values() for f in plan.found if f.fused}

    def narrow_children(self, plans: Iterable[ModulePlan]) -> Iterator[nn.Module]:
        """The descendants whose narrow forwards these plans call, directly or indirectly."""
        todo = list(plans)
        while todo:
            for child, dropped in todo.pop().narrowed:
                yield child
                todo += [p for (m, (_, d)), p in self.plans.items() if m is child and d == dropped]

    def forget(self, module: nn.Module) -> None:
        """Remove all plans of a module."""
        for key in [k for k in self.plans if k[0] is module]:
            self.plans[key] = ModulePlan(module)

    def narrow_rules(self, module: nn.Module) -> set[str]:
        """The rules that apply in narrow forwards of a module, and the fallback rules that they replace."""
        found = {f.rule for (m, (_, d)), p in self.plans.items() if m is module and d for f in p.found if f.fused}
        return found | self._fallbacks if found else set()

    def replaced_rules(self, module: nn.Module, training: bool) -> set[str]:
        """The fallback rules whose places a narrow forward of a module fuses by a wider rule in a mode."""
        narrow = [p for dropped, p in self.plans_in_mode(module, training).items() if dropped and p.variant]
        found = {f.rule for plan in narrow for f in plan.found if f.fused}
        return self._fallbacks - found if found - self._fallbacks else set()

    @cached_property
    def _fallbacks(self) -> set[str]:
        return {r.rule.code for r in self.rules if r.rule.fallback}

    def forward_keys(self, module: nn.Module, dropped: frozenset[Path]) -> Hashable:
        """A key that distinguishes the planned narrow forwards of a module."""
        plans = [p for (m, (_, d)), p in self.plans.items() if m is module and d == dropped]
        return tuple((p.forward, *(self.forward_keys(c, d) for c, d in p.narrowed)) for p in plans if p.variant)

    def _build_plan(
        self, module: nn.Module, training: bool, dropped: frozenset[Path], call: ForwardArguments | None
    ) -> ModulePlan | None:
        state = self.states.get(module)
        if state is None or call is None:
            return None
        try:
            require_replaceable_forward(module)
            return self._trace_and_rewrite(module, training, dropped, call, state.exclusions)
        except Untraceable as error:
            self.temporary |= {module} if error.passing else set()
            self.untraceable.append((module, error))
        except Exception as error:
            self.failed.append((module, reason_of_failure(error, "reading and rewriting it")))
            # A rule that raises is excluded, and the other rules still apply.
            culprit = error.rule if isinstance(error, RuleError) else ""
            if culprit and culprit not in state.exclusions.rules:
                state.exclusions = state.exclusions.plus(rules=[culprit])
                return self._build_plan(module, training, dropped, call)
        return None

    def _trace_and_rewrite(
        self, module: nn.Module, training: bool, dropped: frozenset[Path], call: ForwardArguments, without: Exclusions
    ) -> ModulePlan:
        twin = self.world.of(module)
        set_mode(twin, training)
        key, opened = (module, (training, dropped)), self._equal.open_integers(module, training)
        outer, self._considered, read = self._considered, [], IntegersRead()
        try:
            with integers_noted(read):
                trace = trace_forward(module, *copy_call(call), self.world, self.mode, dropped, opened)
                rules = tuple(r for r in self.rules if r.rule.code not in without.rules)
                called, of_children, uses = trace.called, trace.integers_of_children, trace.object_uses
                with mute_fake_tensor_log(), torch.enable_grad():
                    plan = plan_trace(trace, rules, without.sites_in(training), _PlannedChildren(self, training))
            self._equal.dependences[key] = Dependence(read, called, of_children, uses, self._considered)
        finally:
            self._considered = outer
        if plan.variant is not None:
            plan.variant = self._equal.without_index_guards(key, plan.variant)
        return plan

    def layers_in_fused_code(self, modules: Collection[nn.Module]) -> set[nn.Module]:
        """The children that the rewritten forwards of `modules` no longer call: fused code reads their parameters."""
        plans = [(m, plan) for (m, _), plan in self.plans.items() if m in modules and plan.variant is not None]
        return {module.get_submodule(path) for module, plan in plans for path in plan.bypassed}

    def trace_child(self, child: nn.Module, call: ForwardArguments) -> ForwardTrace | None:
        """The trace of a child's call, which is not rewritten; None if the child cannot be traced."""
        training = self.world.of(child).training
        key, opened = (child, training, call_key(call)), self._equal.open_integers(child, training)
        if key not in self._child_traces:
            read = IntegersRead()
            try:
                with integers_noted(read):
                    trace = trace_forward(child, *copy_call(call), self.world, self.mode, open_integers=opened)
                self._child_traces[key] = trace, read.union(*trace.integers_of_children.values())
            except Untraceable:
                self._child_traces[key] = None, read
        note_integers(self._child_traces[key][1])
        return self._child_traces[key][0]


def require_replaceable_forward(module: nn.Module) -> None:
    """Raise Untraceable if the class of `module` cannot get another forward."""
    if why := why_not_replaceable(type(module)):
        raise Untraceable(because(forwards.KEPT_BY_CLASS, kind=type(module).__name__, why=why))


def plan_calls(
    rules: tuple[LoadedRule, ...], states: Mapping[nn.Module, ModuleState], calls: dict[bool, Calls],
    show_progress: ShowProgress, created_bytes: Mapping[nn.Module, BytesByDevice] | None = None,
) -> Planner:  # fmt: skip
    """Plan each called module of `states` in both modes. The arguments are those of Planner."""
    planner = Planner(rules, states, calls, created_bytes=created_bytes)
    called = [m for m in states if any(m in c for c in calls.values())]
    for module in show_progress("reading", called, len(called)):
        for training in (False, True):
            if module in calls[training]:
                planner.plan(module, training, frozenset())
    return planner


def bypassed_children(planner: Planner) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """The modules that the rewritten forward of their only parent no longer calls, with the rule and the parent.

    Their code is part of a fused site in the parent.
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


class _PlannedChildren:
    """Plans for the children of a module, in one mode."""

    def __init__(self, planner: Planner, training: bool) -> None:
        self._planner, self._training = planner, training
        self.trace_child = planner.trace_child

    def plan_narrow(self, child: nn.Module, call: ForwardArguments, unread: frozenset[Path]) -> ModulePlan | None:
        whole = self._planner.plan(child, self._training, frozenset(), call)
        part = self._planner.plan(child, self._training, unread, call)
        return part if part and whole and _benefit(part) > _benefit(whole) else None

    def plan_without_dropout(self, child: nn.Module, call: ForwardArguments, dropped: frozenset[Path]) -> bool:
        plan = self._planner.plan(child, self._training, dropped, call)
        return plan is not None and plan.variant is not None

    def discard_plan(self, child: nn.Module, dropped: frozenset[Path]) -> None:
        self._planner.plans.pop((child, (self._training, dropped)), None)


def _children_of(plan: ModulePlan) -> list[nn.Module]:
    """The children whose narrow forwards a plan calls."""
    return [child for child, _ in plan.narrowed]


def copy_call(call: ForwardArguments) -> ForwardArguments:
    """Copy the containers of a call, because a trace may run forwards that change them."""
    return copy.copy(call[0]), dict(call[1])


def _benefit(plan: ModulePlan) -> int:
    """The estimated benefit of a plan. Fused attention has a larger one than a fused softmax alone."""
    return sum(f.benefit for f in plan.found if f.fused) + len(plan.narrowed)
