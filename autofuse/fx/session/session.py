"""The session of one optimized model: it installs forwards, collects the report, and handles new kinds of call.

Modules are referenced weakly, so that a model can be freed.
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
from autofuse.fx.lazy.padded_linear import use_padded_products
from autofuse.fx.session.compiling import CompiledModules
from autofuse.fx.session.gain_checks import SlowerSite
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.lazy_heads import HEAD_RULE, LazyHead, find_lazy_heads, report_of_head, unchecked_heads
from autofuse.fx.session.lazy_masks import find_mask_modules, mask_report
from autofuse.fx.session.ledger import Ledger, may_hold_a_site
from autofuse.fx.session.leftovers import without_leftovers
from autofuse.fx.session.memory_room import UNCHECKED, calls_of_heads
from autofuse.fx.session.model_check import ModelVerdict
from autofuse.fx.session.options import Options
from autofuse.fx.session.padded_layers import find_padded_layers, report_of_layer
from autofuse.fx.session.planner import Planner, bypassed_children, require_replaceable_forward
from autofuse.fx.session.rank_agreement import plan_in_sync, plan_partial_call_in_sync
from autofuse.fx.session.ranks import Disagreement, Ranks, is_single_rank
from autofuse.fx.session.site_checks import Checker, Verdicts
from autofuse.fx.session.state import PATTERNS, ModuleState
from autofuse.fx.trace.ambient_state import foreign_modes, may_capture, without_observers
from autofuse.fx.trace.class_questions import keeps_functions
from autofuse.fx.trace.effects import has_finalizers
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
from autofuse.torch_private import is_fx_symbolic_tracing, len_torch_function_stack, pytree
from autofuse.verify.out_of_memory import reraise_if_out_of_memory

_LOG = logging.getLogger("autofuse")
CaptureModel = Callable[[ForwardArguments], None]


class Session:
    """The state of one optimized model.

    Attributes:
        options: The arguments of optimize.
        states: The state of each module.
        ledger: The site reports.
        misses: The calls for which no guard held.
        profile: The profile, if requested.
        compile_choice: Whether blocks are compiled, if requested.
        compiled_modules: The modules that autofuse compiled.
        lazy_heads: The linear layers with lazy output.
        padded_layers: The linear layers whose products are padded.
        lazy_masks: The modules that pass lazy masks to their submodules.
        steps: The times of whole steps, if measured.
    """

    def __init__(self, options: Options, states: WeakKeyDictionary[nn.Module, ModuleState], ranks: Ranks) -> None:
        self.options, self.rules, self.states, self.ranks = options, options.rules, states, ranks
        self.checker = Checker() if options.verify else None
        self.ledger, self.misses = Ledger(), GuardFailures()
        self._known: dict[Hashable, RewrittenForward] = {}
        self._lock = threading.RLock()
        self._busy = threading.local()
        self._capture_model: CaptureModel | None = None  # captures the whole model at its first call
        self.profile: BeforeAfter | None = None
        self.compile_choice: CompileChoice | None = None
        self.compiled_modules = CompiledModules()
        self.lazy_heads: WeakSet[nn.Linear] = WeakSet()
        self.padded_layers: WeakSet[nn.Linear] = WeakSet()
        self.lazy_masks: WeakSet[nn.Module] = WeakSet()
        self.steps: tuple[StepTime, ...] = ()
        self._replaced: WeakKeyDictionary[nn.Module, set[nn.Module]] = WeakKeyDictionary()  # by parent

    @property
    def report(self) -> Report:
        """The report, in the order of the model's modules."""
        return self._report(tuple(s.name for s in self.states.values()))

    def report_below(self, module: nn.Module) -> Report:
        """The report for `module` and its submodules."""
        return self._report(tuple(self.states[m].name for m in module.modules() if m in self.states))

    def _report(self, names: tuple[str, ...]) -> Report:
        fallbacks = tuple(self.misses.fallbacks(names))
        return replace(self.ledger.report(names), fallbacks=fallbacks, profile=self.profile, steps=self.steps,
                       compiled=self.compile_choice)  # fmt: skip

    def install_all(self) -> None:
        """Install all forwards again, after a restore."""
        for module, state in self.states.items():
            if state.runs or module in self.lazy_masks:
                self.install(module)
        for head in self.lazy_heads:
            make_lazy(head)
        for layer in self.padded_layers:
            use_padded_products(layer)
        if self.compile_choice is not None:
            model = next(m for m, s in self.states.items() if not s.name and not s.belongs_to_copy)
            self.compiled_modules.compile(model, self.compile_choice.modules)

    # Called by optimize.

    def capture_later(self, whole: CaptureModel | None = None) -> None:
        """Capture each module at its first call.

        Args:
            whole: Captures the whole model, if the model itself is called first.
        """
        self._capture_model = whole
        for module, state in self.states.items():
            state.captures_new_calls = True
            self.install(module)
            self._note_unreplaceable(module)

    def _note_unreplaceable(self, module: nn.Module) -> None:
        try:
            require_replaceable_forward(module)
        except Untraceable as error:
            self.ledger.note_untraceable(self.states[module].name, module, error)

    def note_planned(self, planner: Planner, problems: Iterable[Reason] = ()) -> None:
        """Record the calls in which nothing can be fused, so that they are not captured again, and other `problems`."""
        self.note_unread(*problems)
        for module in {m for calls in planner.calls.values() for m in calls if m in self.states}:
            self._note_without_gain(planner, module)

    def _note_without_gain(self, planner: Planner, module: nn.Module) -> None:
        """Record the calls of one module in which nothing can be fused."""
        state = self.states[module]
        for training, calls in planner.calls.items():
            plan = planner.plans.get((module, (training, frozenset())))
            if module in calls and (plan is None or plan.variant is None):
                kind = kind_of(calls[module], training)
                if module not in planner.temporary and kind is not None:
                    state.unfusable_calls.add(kind)
                state.captures_new_calls = state.captures_new_calls or plan is None or bool(plan.found)

    def install_plans(self, planner: Planner, verdicts: Verdicts) -> None:
        """Install the verified plans. A module that could not be verified is captured at its next call."""
        for module, why in planner.failed:
            self.ledger.decline(self.states[module].name, why)
        for module, error in planner.untraceable:
            self.ledger.note_untraceable(self.states[module].name, module, error)
        parts = list(bypassed_children(planner))
        bypassed = {child for child, _, _ in parts}
        for (module, (training, dropped)), plan in planner.plans.items():
            state = self.states[module]
            unverified = plan.variant is not None and self.checker is not None and module not in verdicts
            state.captures_new_calls = state.captures_new_calls or unverified
            if unverified and module not in bypassed:
                continue
            elsewhere = set() if dropped else planner.narrow_rules(module)
            replaced = set() if dropped else planner.replaced_rules(module, training)
            self.ledger.note_plan(state.name, plan, verdicts.get(module), elsewhere, replaced, training)
            if plan.variant is None or unverified:
                continue
            variants = state.narrow[dropped] if dropped else state.full
            if all(v.key != plan.variant.key for v in variants):
                variants.append(plan.variant)
        for child, rule, parent in parts:
            self._replaced.setdefault(parent, set()).add(child)
            self.ledger.note_part(self.states[child].name, rule, self.states[parent].name)
        for module in {m for m, _ in planner.plans if self.states[m].runs} | planner.temporary:
            try:
                self.install(module)
            except Exception as failure:
                self._restore_original(module, reason_of_failure(failure, "installing its new forward"))

    def _restore_original(self, module: nn.Module, why: Reason) -> None:
        """Restore the original forward of `module` for good, and record the reason."""
        state = self.states[module]
        state.full.clear()
        state.narrow.clear()
        state.captures_left, state.captures_new_calls = 0, False
        self.lazy_masks.discard(module)
        restore_module(module)
        if not self.ledger.roll_back(why, {state.name}):
            self.ledger.decline(state.name, why)

    def capture_uncalled_later(self, planner: Planner) -> None:
        """Capture the modules that no planned call reaches at their first call, if they may contain a site."""
        called = {module for calls in planner.calls.values() for module in calls}
        for module, state in self.states.items():
            if module not in called and may_hold_a_site(module):
                state.captures_new_calls = True
                self.install(module)
                self.ledger.decline(state.name, because(outcomes.NEVER_CALLED))

    def roll_back_modules(self, verdict: ModelVerdict) -> None:
        """Roll back the modules that make the whole model differ, and record what was not checked."""
        if verdict.unchecked:
            self.note_unread(verdict.unchecked)
        # The modules that they replaced are called again, and keep their originals too.
        replaced = (child for module in verdict.rolled_back for child in self._replaced.get(module, ()))
        rolled_back = dict.fromkeys((*verdict.rolled_back, *replaced))
        for module in rolled_back:
            state = self.states[module]
            state.full.clear()
            state.narrow.clear()
            state.captures_left = 0
            self.install(module)
        if verdict.reason:
            self.ledger.roll_back(verdict.reason, {self.states[m].name for m in rolled_back})

    def install_lazy_heads(self, model: nn.Module, call: ForwardArguments, planner: Planner) -> None:
        """Make the output of linear layers lazy if only a loss reads it. Pad others if that is faster."""
        if not any(rule.rule.code == HEAD_RULE for rule in self.rules):
            return
        fused = planner.layers_in_fused_code({m for m, state in self.states.items() if state.runs})
        names = {m: n for n, m in model.named_modules() if self.options.wants(n, m) and m not in fused}
        found = self._find_lazy_heads(model, call, planner, names)
        for head in found:
            if head.reason is None:
                make_lazy(head.module)
                self.lazy_heads.add(head.module)
        self._pad_layers(planner, names)
        for head in found:
            self.ledger.note(report_of_head(head))

    def _pad_layers(self, planner: Planner, names: dict[nn.Module, str]) -> None:
        """Pad the products of linear layers for which that was measured to be faster."""
        if not self.options.tune or not is_single_rank():
            return
        try:
            layers = find_padded_layers(planner, names, self.lazy_heads)
        except Exception as error:
            reraise_if_out_of_memory(error)
            self.note_unread(reason_of_failure(error, "timing padded products"))
            return
        for layer in layers:
            if layer.module in self.lazy_heads:  # it has a report of its own
                continue
            self.ledger.note(report_of_layer(layer))
            if layer.is_faster:
                use_padded_products(layer.module)
                self.padded_layers.add(layer.module)

    def _find_lazy_heads(
        self, model: nn.Module, call: ForwardArguments, planner: Planner, names: dict[nn.Module, str]
    ) -> list[LazyHead]:
        """The layers whose output can be lazy, and with a reason those that cannot."""
        calls = calls_of_heads(model, call, planner.created_bytes.get(model), self.checker is not None)
        if calls.why_none:
            self.ledger.note(unchecked_heads(f"{calls.why_none} {UNCHECKED}"))
            return []
        try:
            return find_lazy_heads(model, calls, names, planner.sharded, self.options.loss_fn)
        except Untraceable:  # the model has an effect, which is the reason why it was not traced
            return []
        except Exception as error:
            reraise_if_out_of_memory(error)
            self.note_unread(reason_of_failure(error, "looking at the model's logits"))
            return []

    def install_lazy_masks(self, model: nn.Module) -> None:
        """Make the masks lazy that modules build for fused attention."""
        for module, rule in find_mask_modules(model, self.report, {m: s.name for m, s in self.states.items()}):
            if self.states[module].variants or not self.options.wants(self.states[module].name, module):
                continue
            self.lazy_masks.add(module)
            self.install(module)
            self.ledger.note(mask_report(self.states[module].name, module, rule))

    def compile(self, model: nn.Module, choice: CompileChoice) -> None:
        """Compile the chosen modules. If the compiled original is faster, roll back the fused sites first."""
        self.compile_choice = choice
        if choice.chosen == "compiled original":
            fused = tuple(m for m, s in self.states.items() if s.full or s.narrow)
            why = because(outcomes.COMPILED_IS_FASTER, ratio=choice.original)
            self.roll_back_modules(ModelVerdict(rolled_back=fused))
            self.ledger.roll_back(why, {self.states[m].name for m in fused}, status="declined")
        if choice.chosen != "eager":
            self.compiled_modules.compile(model, choice.modules)

    def note_slower(self, places: Iterable[SlowerSite]) -> None:
        """Add sites that gain nothing to the report."""
        for site, modes in places:
            self.ledger.note_slower(site, modes)

    def note_unread(self, *reasons: Reason) -> None:
        """Record why the model, or a part of it, was not traced or not checked."""
        for why in reasons:
            self.ledger.decline("", why)

    def install(self, module: nn.Module) -> None:
        """Install the forwards in the state of `module`, or its original forward if there are none."""
        state = self.states[module]
        if module in self.lazy_masks and not state.variants:
            install_forward(module, forward_with_lazy_masks, self.on_copy)
            return
        if not state.runs or why_not_replaceable(type(module)):
            restore_module(module)
            return
        narrow: Narrow = {k: tuple(v) for k, v in state.narrow.items()}
        install(module, tuple(state.full), narrow, self.on_miss, self._known, self.on_compile, self.on_copy,
                self.on_error, state.original_modes)  # fmt: skip

    # Called when no installed forward fits a call.

    def on_miss(
        self, of: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], unread: frozenset[Path]
    ) -> Any:
        """Capture a new kind of call, up to a limit. Then run the forward that fits, or the original `of`."""
        entry_of(module)  # registers copies
        args, kwargs = with_plain_masks(args, kwargs)
        if unread:
            return self._on_partial_miss(of, module, (args, kwargs), unread)
        state = self.states.get(module)
        retried: set[int] = self._busy.__dict__.setdefault("modules", set())
        if state is None or self._must_not_capture() or id(module) in retried:
            return of(module, *args, **kwargs)
        was_captured = self._capture_whole_model(module, state, (args, kwargs)) or self._capture_call(
            of, module, state, (args, kwargs)
        )
        if not was_captured:
            return of(module, *args, **kwargs)
        retried.add(id(module))  # if the new variant does not fit either, the original runs
        try:
            entry = entry_of(module)
            # A class that the module got since may call `of` by super(): the entry is then for that class's forward.
            return (entry.forward if entry is not None and entry.of is of else of)(module, *args, **kwargs)
        finally:
            retried.discard(id(module))

    def _capture_whole_model(self, module: nn.Module, state: ModuleState, call: ForwardArguments) -> bool:
        """Capture the whole model at its first call, as if this call were the example inputs of optimize.

        The check then includes what callers do with arguments and results. With ranks, each module is captured
        separately, because ranks do not wait for each other here.

        Returns:
            Whether the model itself, which is `module`, has a new forward.
        """
        whole = self._capture_model if not state.name and not state.belongs_to_copy else None
        if whole is None or not may_capture() or has_meta_tensors(module) or _has_ranks() or _overrides_functions(call):
            return False
        self._capture_model = None
        try:
            with self._capturing(), torch.enable_grad():
                whole(call)
        except Exception as error:  # the user's call must not fail; modules are captured separately
            self.note_unread(reason_of_failure(error, "looking at the model"))
        return bool(state.full)

    def _capture_call(self, of: Forward, module: nn.Module, state: ModuleState, call: ForwardArguments) -> bool:
        """Capture a new kind of call unless a reason forbids it. Returns whether something was fused."""
        # This check is first, because it runs at each call of the module.
        seen = len_torch_function_stack() and foreign_modes()  # such a mode would see what kind_of reads
        if not state.variants and not seen and kind_of(call, module.training) in state.unfusable_calls:
            return False
        try:
            guard = (
                "" if _overrides_functions(call) else self.misses.guard(state.name, of, state.variants, (module, *call))
            )
            guard = guard or (_NO_OVERRIDES if _overrides_functions(call) else NOT_CALLED if state.variants else "")
            if why := _why_not_captured(state, module, call):
                self.misses.count(state.name, guard, "original", why)
                return False
            known = len(state.variants)
            with self._capturing():
                self._recapture(module, state, call)
            gained = len(state.variants) > known
            self.misses.count(state.name, guard, "captured anew" if gained else "original", "nothing could be fused")
            return gained
        except Disagreement:  # ranks with different programs would deadlock
            raise
        except Exception as error:
            self._restore_original(module, reason_of_failure(error, "looking at a new kind of call"))
            return False

    def on_error(
        self, error: Exception, of: Forward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the original `of` after the new forward raised an error.

        If the original raises too, the error is the user's. Otherwise the module runs its original from now on.
        """
        why = reason_of_failure(error, "running its new forward")
        error.__traceback__ = None  # it refers to tensors of the call
        result = of(module, *args, **kwargs)
        if module in self.states:
            self._restore_original(module, why)
        return result

    def _on_partial_miss(self, of: Forward, module: nn.Module, call: ForwardArguments, unread: frozenset[Path]) -> Any:
        """Handle a narrow call that no forward fits. Each kind of call is captured once."""
        state = self.states.get(module)
        if state is None or self._must_not_capture() or not self._capture_partial_call(of, module, state, call, unread):
            return module(*call[0], **call[1])
        forward = narrow_forward(module, narrow_name(unread))
        return module(*call[0], **call[1]) if forward is None else forward(module, *call[0], **call[1])

    def _capture_partial_call(
        self, of: Forward, module: nn.Module, state: ModuleState, call: ForwardArguments, unread: frozenset[Path]
    ) -> bool:
        try:
            if _why_not_captured(state, module, call, unread):
                return False
            state.unfusable_calls.add((unread, kind_of(call, module.training)))
            known = len(state.narrow[unread])
            guard = self.misses.guard(state.name, of, state.narrow[unread], (module, *call))
            with self._capturing():
                state.captures_left -= 1
                planner = self._planner_for_call(module, call)
                self.install_plans(planner, plan_partial_call_in_sync(self, planner, module, unread, call))
            if gained := len(state.narrow[unread]) > known:
                self.misses.count(state.name, guard, "captured anew", "")
            return gained
        except Disagreement:
            raise
        except Exception as error:
            self._restore_original(module, reason_of_failure(error, "looking at a new kind of call"))
            return False

    def _must_not_capture(self) -> bool:
        """Whether the call is traced by torch.fx or made by a capture."""
        return is_fx_symbolic_tracing() or bool(self._busy.__dict__.get("capturing"))

    @contextmanager
    def _capturing(self) -> Iterator[None]:
        with self._lock:
            # The calls that a capture makes must not be captured themselves.
            self._busy.capturing = True
            try:
                with without_observers(), without_leftovers():
                    yield
            finally:
                self._busy.capturing = False

    def on_copy(self, original: nn.Module, duplicate: nn.Module) -> None:
        """Give a copy of a module its own state, for example a copy for weight averaging."""
        if original in self.states:
            self.states[duplicate] = self.states[original].state_of_copy()

    def on_compile(self, forward: Forward, guard: str) -> None:
        """Record that a compiler compiled the original of modules that run `forward`."""
        states = [s for m, s in self.states.items() if (found := entry_of(m)) is not None and found.forward is forward]
        names = [s.name for s in states if guard != UNCALLED or not s.unfusable_calls]
        if names:
            self.misses.count(", ".join(names), guard, "original", "a compiler does not capture it again")

    def _recapture(self, module: nn.Module, state: ModuleState, call: ForwardArguments) -> None:
        state.captures_left -= 1
        if state.captures_left == 0:
            self.ledger.decline(state.name, because(outcomes.CALLED_IN_MANY_WAYS, count=PATTERNS))
        planner = self._planner_for_call(module, call)
        verdicts = plan_in_sync(self, planner, module, call)
        self.note_planned(planner)
        self.install_plans(planner, verdicts)

    def _planner_for_call(self, module: nn.Module, call: ForwardArguments) -> Planner:
        """A planner for one call of one module in its current mode."""
        calls = {module.training: {module: without_dtensors(call)}}
        return Planner(self.rules, self.states, calls, global_forms(module, call))

    def forget(self) -> None:
        """Remove all results and restore all original forwards, as before fuse()."""
        for state in self.states.values():
            state.full.clear()
            state.narrow.clear()
            state.unfusable_calls.clear()
            state.slower_modes.clear()
            state.captures_left, state.captures_new_calls = PATTERNS, False
        for module in self.states:
            restore(module)
        self.lazy_heads.clear()
        self.padded_layers.clear()
        self.lazy_masks.clear()
        self._replaced.clear()
        self.compiled_modules.restore()
        self.ledger, self.steps = Ledger(), ()


def _has_ranks() -> bool:
    return dist.is_available() and dist.is_initialized()


_NO_OVERRIDES = "no tensor is of a class that overrides functions"


def _overrides_functions(call: ForwardArguments) -> bool:
    """Whether an argument is a tensor of a class that overrides functions and so observes each access."""
    return any(isinstance(x, Tensor) and not keeps_functions(type(x)) for x in pytree.tree_leaves(call))


def _holds_overriding_tensors(module: nn.Module) -> bool:
    """Whether a parameter or a buffer of the module itself is of a class that overrides functions."""
    inside = module.__dict__
    held = (*inside["_parameters"].values(), *inside["_buffers"].values())
    return any(isinstance(x, Tensor) and not keeps_functions(type(x)) for x in held)


def _why_not_captured(
    state: ModuleState, module: nn.Module, call: ForwardArguments, unread: frozenset[Path] = frozenset()
) -> str:
    """The reason why such a call is not captured, as the end of a sentence, or "".

    Tensors of classes that override functions are not inspected.
    """
    if state.captures_left <= 0:
        return f"it was called in more than {PATTERNS} ways"
    if not may_capture():
        return "a call that is recorded or transformed by other code is not captured"
    kind = kind_of(call, module.training)
    if ((unread, kind) if unread else kind) in state.unfusable_calls:
        return "nothing could be fused in this kind of call"
    if kind is None or _overrides_functions(call):
        return "tensors of a class that overrides functions are not captured"
    if any(isinstance(x, Tensor) and x.is_nested for x in pytree.tree_leaves(call)):
        return "nested tensors are not captured"
    if finalized := has_finalizers(module):
        return f"a copy of {finalized} would run its finalizer"
    if _holds_overriding_tensors(module):
        return "it holds a tensor of a class that overrides functions, which would see a capture"
    return "its parameters are on the meta device" if has_meta_tensors(module) else ""
