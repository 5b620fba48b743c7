"""One optimized model: which variants each of its modules runs, what was found in it, and what to do at new calls.

Knows how plans become installed forwards and how they are checked first. Modules are held weakly: a model may go.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autofuse.fx.install.codegen import Forward
from autofuse.fx.install.dispatch import (
    UNCALLED,
    Narrow,
    RewrittenForward,
    entry_of,
    install,
    install_forward,
    narrow_forward,
    narrow_name,
    restore,
    restore_module,
)
from autofuse.fx.install.guard_failures import NOT_CALLED, GuardFailures
from autofuse.fx.lazy.head import make_lazy
from autofuse.fx.lazy.mask_factories import forward_with_lazy_masks
from autofuse.fx.session.compiling import CompiledModules
from autofuse.fx.session.gain_checks import SlowerPlace
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.lazy_heads import HEAD_RULE, lazy_heads, site_of
from autofuse.fx.session.lazy_masks import makers_of_masks, note_of_masks
from autofuse.fx.session.ledger import Ledger, may_hold_a_site
from autofuse.fx.session.leftovers import nothing_left
from autofuse.fx.session.memory_room import room_to_check
from autofuse.fx.session.model_check import ModelVerdict
from autofuse.fx.session.options import Options
from autofuse.fx.session.planner import Planner, bypassed_children, refuse_where_kept
from autofuse.fx.session.rank_agreement import part_is_planned_as_others_do, planned_as_others_do
from autofuse.fx.session.ranks import Disagreement, Ranks
from autofuse.fx.session.site_checks import Checker, Verdicts
from autofuse.fx.session.state import PATTERNS, ModuleState
from autofuse.fx.trace.ambient_state import may_capture, without_observers
from autofuse.fx.trace.class_questions import keeps_functions
from autofuse.fx.trace.module_calls import kind_of
from autofuse.fx.trace.own_forward import why_not_replaceable
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.sharding import global_forms, has_meta_tensors, without_dtensors
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.values import Untraceable
from autofuse.ops.lazy_masks import with_plain_masks
from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.results.before_after import BeforeAfter
from autofuse.results.compile_choice import CompileChoice
from autofuse.results.sites import Report
from autofuse.results.step_times import StepTime
from autofuse.torch_private import is_fx_symbolic_tracing, pytree
from autofuse.verify.out_of_memory import reraise_if_out_of_memory

_LOG = logging.getLogger("autofuse")
Whole = Callable[[ForwardArguments], None]


class Session:
    """Everything about one call of optimize that outlives it."""

    def __init__(self, options: Options, states: WeakKeyDictionary[nn.Module, ModuleState], ranks: Ranks) -> None:
        self.options, self.rules, self.states, self.ranks = options, options.rules, states, ranks
        self.checker = Checker() if options.verify else None
        self.ledger, self.misses = Ledger(), GuardFailures()
        self._known: dict[Hashable, RewrittenForward] = {}
        self._lock = threading.RLock()
        self._busy = threading.local()
        self._whole: Whole | None = None  # what looks at the whole model at its first call
        self.profile: BeforeAfter | None = None  # where it was asked for
        self.compile_choice: CompileChoice | None = None
        self.compiled_modules = CompiledModules()
        self.lazy_heads: WeakSet[nn.Linear] = WeakSet()
        self.lazy_masks: WeakSet[nn.Module] = WeakSet()  # what makes masks for its layers
        self.steps: tuple[StepTime, ...] = ()  # what whole steps take, where they were timed

    @property
    def report(self) -> Report:
        """What was found, in the order of the model's modules."""
        return self._report(tuple(s.name for s in self.states.values()))

    def report_below(self, module: nn.Module) -> Report:
        """What was found in `module` and below it."""
        return self._report(tuple(self.states[m].name for m in module.modules() if m in self.states))

    def _report(self, names: tuple[str, ...]) -> Report:
        fallbacks = tuple(self.misses.fallbacks(names))
        return replace(self.ledger.report(names), fallbacks=fallbacks, profile=self.profile, steps=self.steps,
                       compiled=self.compile_choice)  # fmt: skip

    def install_all(self) -> None:
        """Give every module its forward again, after a restore."""
        for module, state in self.states.items():
            if state.runs or module in self.lazy_masks:
                self.install(module)
        for head in self.lazy_heads:
            make_lazy(head)
        if self.compile_choice is not None:
            model = next(m for m, s in self.states.items() if not s.name and not s.is_a_copys)
            self.compiled_modules.compile(model, self.compile_choice.modules)

    # At optimize.

    def arm(self, whole: Whole | None = None) -> None:
        """Have every module captured at its first call. `whole`: what looks at the model as it is called first, if it
        is called itself.
        """
        self._whole = whole
        for module, state in self.states.items():
            state.armed = True
            self.install(module)
            self._note_where_kept(module)

    def _note_where_kept(self, module: nn.Module) -> None:
        try:
            refuse_where_kept(module)
        except Untraceable as error:
            self.ledger.note_untraceable(self.states[module].name, module, error)

    def remember(self, planner: Planner, problems: Iterable[Reason] = ()) -> None:
        """Note what was planned in vain: those kinds of call are not looked at again. `problems`: what was not read."""
        self.note_unread(*problems)
        for module in {m for calls in planner.calls.values() for m in calls if m in self.states}:
            self._remember(planner, module)

    def _remember(self, planner: Planner, module: nn.Module) -> None:
        """A module with nothing to find in it stays as it is."""
        state = self.states[module]
        for training, calls in planner.calls.items():
            plan = planner.plans.get((module, (training, frozenset())))
            if module in calls and (plan is None or plan.variant is None):
                kind = kind_of(calls[module], training)
                if module not in planner.passing and kind is not None:
                    state.nothing_found.add(kind)
                state.armed = state.armed or plan is None or bool(plan.found)

    def adopt(self, planner: Planner, verdicts: Verdicts) -> None:
        """Install what was planned and holds; what could not be checked is looked at when it is called."""
        for module, why in planner.failed:
            self.ledger.decline(self.states[module].name, why)
        for module, error in planner.untraceable:
            self.ledger.note_untraceable(self.states[module].name, module, error)
        for (module, (training, dropped)), plan in planner.plans.items():
            state = self.states[module]
            if plan.variant is not None and self.checker and module not in verdicts:
                state.armed = True
                continue
            elsewhere = set() if dropped else planner.narrow_rules(module)
            self.ledger.note_plan(state.name, plan, verdicts.get(module), elsewhere, training)
            if plan.variant is None:
                continue
            variants = state.narrow[dropped] if dropped else state.full
            if all(v.key != plan.variant.key for v in variants):
                variants.append(plan.variant)
        for child, rule, parent in bypassed_children(planner):
            self.ledger.note_part(self.states[child].name, rule, self.states[parent].name)
        for module in {m for m, _ in planner.plans if self.states[m].runs} | planner.passing:
            try:
                self.install(module)
            except Exception as failure:
                self._run_the_original(module, reason_of_failure(failure, "installing its new forward"))

    def _run_the_original(self, module: nn.Module, why: Reason) -> None:
        """From here on `module` runs as it was written, whatever was found in it."""
        state = self.states[module]
        state.full.clear()
        state.narrow.clear()
        state.left, state.armed = 0, False
        self.lazy_masks.discard(module)
        restore_module(module)
        if not self.ledger.roll_back(why, {state.name}):
            self.ledger.decline(state.name, why)

    def arm_uncalled(self, planner: Planner) -> None:
        """Have the modules that no planned call reaches, and that may hold something, captured at their first call."""
        called = {module for calls in planner.calls.values() for module in calls}
        for module, state in self.states.items():
            if module not in called and may_hold_a_site(module):
                state.armed = True
                self.install(module)
                self.ledger.decline(state.name, because(outcomes.NEVER_CALLED))

    def take_back(self, verdict: ModelVerdict) -> None:
        """Take back what was fused in modules by which the whole model differs, and note what was not checked."""
        if verdict.unchecked:
            self.note_unread(verdict.unchecked)
        for module in verdict.taken_back:
            state = self.states[module]
            state.full.clear()
            state.narrow.clear()
            state.left = 0
            self.install(module)
        if verdict.reason:
            self.ledger.roll_back(verdict.reason, {self.states[m].name for m in verdict.taken_back})

    def adopt_heads(self, model: nn.Module, call: ForwardArguments, planner: Planner) -> None:
        """Have the linear layers whose output only a loss reads return logits that are computed when they are read."""
        if not any(rule.rule.code == HEAD_RULE for rule in self.rules):
            return
        names = {m: n for n, m in model.named_modules() if self.options.wants(n, m)}
        room = room_to_check(model, call, planner.made.get(model))
        if room.whole:
            return
        try:
            found = lazy_heads(model, call, names, planner.sharded, self.options.loss_fn, self.checker is not None)
        except Exception as error:
            reraise_if_out_of_memory(error)
            self.note_unread(reason_of_failure(error, "looking at the model's logits"))
            return
        for head in found:
            self.ledger.note(site_of(head))
            if head.reason is None:
                make_lazy(head.module)
                self.lazy_heads.add(head.module)

    def adopt_masks(self, model: nn.Module) -> None:
        """Have the modules that make masks for fused attention hand on masks that are made when they are read."""
        for module, rule in makers_of_masks(model, self.report, {m: s.name for m, s in self.states.items()}):
            if self.states[module].variants or not self.options.wants(self.states[module].name, module):
                continue
            self.lazy_masks.add(module)
            self.install(module)
            self.ledger.note(note_of_masks(self.states[module].name, module, rule))

    def compile(self, model: nn.Module, choice: CompileChoice) -> None:
        """Have the modules that were chosen run compiled; as they were written where that is faster."""
        self.compile_choice = choice
        if choice.chosen == "compiled original":
            fused = tuple(m for m, s in self.states.items() if s.full or s.narrow)
            why = because(outcomes.COMPILED_IS_FASTER, ratio=choice.original)
            self.take_back(ModelVerdict(taken_back=fused))
            self.ledger.roll_back(why, {self.states[m].name for m in fused}, status="declined")
        if choice.chosen != "eager":
            self.compiled_modules.compile(model, choice.modules)

    def note_slower(self, places: Iterable[SlowerPlace]) -> None:
        """Add places that gain nothing to the report."""
        for site, modes in places:
            self.ledger.note_slower(site, modes)

    def note_unread(self, *reasons: Reason) -> None:
        """Note why the model, or a part of it, was not read or not checked."""
        for why in reasons:
            self.ledger.decline("", why)

    def install(self, module: nn.Module) -> None:
        """Have `module` run what its state says; its own forward where that is nothing."""
        state = self.states[module]
        if module in self.lazy_masks and not state.variants:
            install_forward(module, forward_with_lazy_masks, self.copied)
            return
        if not state.runs or why_not_replaceable(type(module)):
            restore_module(module)
            return
        narrow: Narrow = {k: tuple(v) for k, v in state.narrow.items()}
        install(module, tuple(state.full), narrow, self.missed, self._known, self.compiled, self.copied,
                self.raised, state.closed)  # fmt: skip

    # At a call that no variant was made for.

    def missed(
        self, of: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], unread: frozenset[Path]
    ) -> Any:
        """Look at a new kind of call, if there are not too many already; then run what fits, or the original, `of`."""
        entry_of(module)  # a copy that nobody heard of is known from here on
        args, kwargs = with_plain_masks(args, kwargs)
        if unread:
            return self._missed_part(of, module, (args, kwargs), unread)
        state = self.states.get(module)
        retried: set[int] = self._busy.__dict__.setdefault("modules", set())
        if state is None or self._looks_away() or id(module) in retried:
            return of(module, *args, **kwargs)
        looked = self._looked_at_whole(module, state, (args, kwargs)) or self._looked_at(
            of, module, state, (args, kwargs)
        )
        if not looked:
            return of(module, *args, **kwargs)
        retried.add(id(module))  # where the new variant does not fit either, the original runs
        try:
            entry = entry_of(module)
            return (of if entry is None else entry.forward)(module, *args, **kwargs)
        finally:
            retried.discard(id(module))

    def _looked_at_whole(self, module: nn.Module, state: ModuleState, call: ForwardArguments) -> bool:
        """Look at the whole model, which is called for the first time, as if optimize had been given this call.

        So what a caller does to a result, or to what it hands on, is checked, too. Whether the model itself, which is
        `module` then, has a new forward for it. Ranks do not wait for each other here, so each looks at its modules.
        """
        whole = self._whole if not state.name and not state.is_a_copys else None
        if whole is None or not may_capture() or has_meta_tensors(module) or _has_ranks() or _is_heard(call):
            return False
        self._whole = None
        try:
            with self._capturing(), torch.enable_grad():
                whole(call)
        except Exception as error:  # this is a call of the user's: each module is looked at on its own instead
            self.note_unread(reason_of_failure(error, "looking at the model"))
        return bool(state.full)

    def _looked_at(self, of: Forward, module: nn.Module, state: ModuleState, call: ForwardArguments) -> bool:
        """Capture a new kind of call, if it is worth a look; whether something was fused for it."""
        if not state.variants and kind_of(call, module.training) in state.nothing_found:  # at each call of the module
            return False
        try:
            guard = "" if _is_heard(call) else self.misses.guard(state.name, of, state.variants, (module, *call))
            guard = guard or (_HEARD if _is_heard(call) else NOT_CALLED if state.variants else "")
            if why := _why_left(state, module, call):
                self.misses.count(state.name, guard, "original", why)
                return False
            known = len(state.variants)
            with self._capturing():
                self._recapture(module, state, call)
            gained = len(state.variants) > known
            self.misses.count(state.name, guard, "captured anew" if gained else "original", "nothing could be fused")
            return gained
        except Disagreement:  # ranks that ran different programs would wait for each other for ever
            raise
        except Exception as error:
            self._run_the_original(module, reason_of_failure(error, "looking at a new kind of call"))
            return False

    def raised(
        self, error: Exception, of: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the original, `of`, where an operation of its new forward raised; what the original raises is the user's.

        Where the original raises nothing, it runs from here on.
        """
        why = reason_of_failure(error, "running its new forward")
        error.__traceback__ = None  # it holds what the call computed
        result = of(module, *args, **kwargs)
        if module in self.states:
            self._run_the_original(module, why)
        return result

    def _missed_part(self, of: Forward, module: nn.Module, call: ForwardArguments, unread: frozenset[Path]) -> Any:
        """The same for a caller that does not read all of the result; each kind of call is looked at once."""
        state = self.states.get(module)
        if state is None or self._looks_away() or not self._part_looked_at(of, module, state, call, unread):
            return module(*call[0], **call[1])
        forward = narrow_forward(module, narrow_name(unread))
        return module(*call[0], **call[1]) if forward is None else forward(module, *call[0], **call[1])

    def _part_looked_at(
        self, of: Forward, module: nn.Module, state: ModuleState, call: ForwardArguments, unread: frozenset[Path]
    ) -> bool:
        try:
            if _why_left(state, module, call, unread):
                return False
            state.nothing_found.add((unread, kind_of(call, module.training)))
            known = len(state.narrow[unread])
            guard = self.misses.guard(state.name, of, state.narrow[unread], (module, *call))
            with self._capturing():
                state.left -= 1
                planner = self._planner(module, call)
                self.adopt(planner, part_is_planned_as_others_do(self, planner, module, unread, call))
            if gained := len(state.narrow[unread]) > known:
                self.misses.count(state.name, guard, "captured anew", "")
            return gained
        except Disagreement:
            raise
        except Exception as error:
            self._run_the_original(module, reason_of_failure(error, "looking at a new kind of call"))
            return False

    def _looks_away(self) -> bool:
        """Whether calls are somebody's who records them, or made by a capture."""
        return is_fx_symbolic_tracing() or bool(self._busy.__dict__.get("capturing"))

    @contextmanager
    def _capturing(self) -> Iterator[None]:
        with self._lock:
            self._busy.capturing = True
            try:
                with without_observers(), nothing_left():
                    yield
            finally:
                self._busy.capturing = False

    def copied(self, original: nn.Module, made: nn.Module) -> None:
        """A module was copied, to be an average of it or another start: the copy is looked at as it was."""
        if original in self.states:
            self.states[made] = self.states[original].for_a_copy()

    def compiled(self, forward: Forward, guard: str) -> None:
        """A compiler took the original of modules that run `forward`."""
        states = [s for m, s in self.states.items() if (found := entry_of(m)) is not None and found.forward is forward]
        names = [s.name for s in states if guard != UNCALLED or not s.nothing_found]
        if names:
            self.misses.count(", ".join(names), guard, "original", "a compiler does not capture it anew")

    def _recapture(self, module: nn.Module, state: ModuleState, call: ForwardArguments) -> None:
        state.left -= 1
        if state.left == 0:
            self.ledger.decline(state.name, because(outcomes.CALLED_IN_MANY_WAYS, count=PATTERNS))
        planner = self._planner(module, call)
        verdicts = planned_as_others_do(self, planner, module, call)
        self.remember(planner)
        self.adopt(planner, verdicts)

    def _planner(self, module: nn.Module, call: ForwardArguments) -> Planner:
        """For one call of one module, in the mode that it is in."""
        calls = {module.training: {module: without_dtensors(call)}}
        return Planner(self.rules, self.states, calls, global_forms(module, call))

    def forget(self) -> None:
        """Nothing was found and nothing is installed, as before fuse()."""
        for state in self.states.values():
            state.full.clear()
            state.narrow.clear()
            state.nothing_found.clear()
            state.slower_modes.clear()
            state.left, state.armed = PATTERNS, False
        for module in self.states:
            restore(module)
        self.lazy_heads.clear()
        self.lazy_masks.clear()
        self.compiled_modules.restore()
        self.ledger, self.steps = Ledger(), ()


def _has_ranks() -> bool:
    return dist.is_available() and dist.is_initialized()


_HEARD = "no tensor is of a class that overrides functions"


def _is_heard(call: ForwardArguments) -> bool:
    """Whether an argument is a tensor of a class with functions of its own: it hears of each question."""
    return any(isinstance(x, Tensor) and not keeps_functions(type(x)) for x in pytree.tree_leaves(call))


def _why_left(
    state: ModuleState, module: nn.Module, call: ForwardArguments, unread: frozenset[Path] = frozenset()
) -> str:
    """Why such a call is not captured anew, as the end of a sentence; "" where it is.

    What hears of each question that is put to a tensor is not asked any.
    """
    if state.left <= 0:
        return f"it was called in more than {PATTERNS} ways"
    kind = kind_of(call, module.training)
    if ((unread, kind) if unread else kind) in state.nothing_found:
        return "nothing could be fused in this kind of call"
    if not may_capture():
        return "a call that others record or transform is not captured"
    if kind is None or _is_heard(call):
        return "tensors of a class with functions of its own are not captured"
    return "its parameters are not here" if has_meta_tensors(module) else ""
