"""Times whole steps of a model, and excludes the sites that make a step slower.

Training and inference are timed separately, on a copy of the model, in interleaved pairs of original and fused steps.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from autofuse.display.progress import ShowProgress
from autofuse.fx.rewrite.module_plan import Found
from autofuse.fx.session import remembered_times
from autofuse.fx.session.gain_checks import SlowerSite, declined_site, exclude_sites
from autofuse.fx.session.memory_room import step_bytes, why_no_room
from autofuse.fx.session.model_steps import ModelSteps, Modules, quiet_steps
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.remembered_steps import (
    SitePlace,
    load_slower_sites,
    load_step,
    store_slower_sites,
    store_step,
)
from autofuse.fx.session.site_checks import Verdicts
from autofuse.fx.session.step_comparison import compare_fused_steps, share_of_kernels, step_time_of
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.measure.compare import device_of
from autofuse.measure.created_bytes import BytesByDevice
from autofuse.measure.pair_count import JudgedTimings
from autofuse.measure.step_pairs import estimate_seconds, is_slower, longest_step
from autofuse.reasons import outcomes
from autofuse.reasons.reason import because
from autofuse.results.comparison import Estimate, milliseconds
from autofuse.results.step_times import StepTime, step_mode
from autofuse.verify.out_of_memory import is_out_of_memory

SHORTEST = 1e-3  # seconds; a shorter step is mostly overhead of Python
LONGEST = 0.25  # seconds; of a model with longer steps, a few of equal layers are timed
_SURELY_LONG = 0.5  # seconds; a first step that takes longer is no short step
_MOST_SITES = 4  # sites of one kind of module that are tried one by one
_NOTHING_LEFT = "nothing is fused in it, because fusion made it slower"
_LOG = logging.getLogger("autofuse")


class StepCheck(NamedTuple):
    """The verdicts on the remaining plans, the sites that make a step slower, and the times of steps."""

    verdicts: Verdicts
    slower: tuple[SlowerSite, ...] = ()
    steps: tuple[StepTime, ...] = ()


def keep_faster_steps(
    model: nn.Module, call: ForwardArguments, planner: Planner, verdicts: Verdicts,
    check: Callable[[], Verdicts] | None, show_progress: ShowProgress,
) -> StepCheck:  # fmt: skip
    """Time whole steps of a model, and plan again without the sites that make a step slower.

    Args:
        model: The model.
        call: The arguments of the step.
        planner: The plans, which are changed.
        verdicts: The verdicts on the plans.
        check: Verifies the new plans. None verifies nothing.
        show_progress: Reports progress.
    """
    slower, steps = list[SlowerSite](), list[StepTime]()
    modes = [model.training, not model.training]
    for training in show_progress("timing whole steps", modes, len(modes)):
        if not _running_modules(planner, verdicts if check else None, training):
            continue
        trial = _StepTrial(model, call, planner, training, verdicts if check else None, check)
        try:
            steps.append(trial.run())
        except Exception as error:  # the step is user code; verified sites stay fused
            _LOG.debug("a whole step could not be timed: %s: %s", type(error).__name__, error)
            why = "memory ran out" if is_out_of_memory(error) else f"it raised {type(error).__name__} on a copy"
            steps.append(StepTime(step_mode(training), not_timed=why))
        slower += trial.slower
        verdicts = verdicts if trial.verdicts is None else trial.verdicts
    return StepCheck(verdicts, tuple(slower), tuple(steps))


class _StepTrial:
    """The timing of one mode of one model. `verdicts` is None if nothing is verified."""

    def __init__(
        self, model: nn.Module, call: ForwardArguments, planner: Planner, training: bool,
        verdicts: Verdicts | None, check: Callable[[], Verdicts] | None,
    ) -> None:  # fmt: skip
        self._model, self._call, self._planner, self._training = model, call, planner, training
        self.verdicts, self._check = verdicts, check
        self.slower: list[SlowerSite] = []
        self._slow_places: list[SitePlace] = []
        self._is_clear = True  # whether each slower step was clearly slower, and each slow site has a place

    def run(self) -> StepTime:
        """Time the step, exclude the sites that make it slower, and return the final time."""
        mode = step_mode(self._training)
        if why := self._why_not_timed():
            return StepTime(mode, not_timed=why)
        key, device = self._key(), device_of(self._model, ())
        if (stored := load_step(key, device, mode)) is not None:
            return stored
        if self._exclude_remembered_sites(key, device):
            return self.run() if self._running_modules() else StepTime(mode, not_timed=_NOTHING_LEFT)
        with self._steps() as steps:
            if why := _out_of_range(steps):
                return StepTime(mode, not_timed=why)
            running = self._running_modules()
            found = compare_fused_steps(steps, running)
            slow_groups = self._slow_groups(steps, self._groups(running)) if is_slower(found) else []
            size, busy = steps.size, None if slow_groups else share_of_kernels(steps, running)
        for group in slow_groups:
            self._exclude_slow_sites(group, found)
        final = self._time_again() if slow_groups else found
        if slow_groups and self._is_clear:
            store_slower_sites(key, device, self._slow_places, found.effect)
        if final is None:
            return StepTime(mode, not_timed=_NOTHING_LEFT)
        time = step_time_of(mode, final, size, busy)
        store_step(self._key(), device, time)
        return time

    def _exclude_remembered_sites(self, key: str, device: torch.device) -> bool:
        """Exclude the sites that made this step slower in an earlier process. Returns whether it did."""
        stored = load_slower_sites(key, device)
        if stored is None:
            return False
        sites = self._sites_at(stored[0])
        for module, found in sites.items():
            self._note([module], found, stored[1])
            exclude_sites(self._planner, module, found, self._training)
        if sites and self._check is not None:
            self.verdicts = self._check()
        return bool(sites)

    def _sites_at(self, places: Iterable[SitePlace]) -> dict[nn.Module, list[Found]]:
        """The fused sites at these places by module; none if one is not there."""
        modules = {state.name: module for module, state in self._planner.states.items()}
        sites: defaultdict[nn.Module, list[Found]] = defaultdict(list)
        for name, rule, file, line in places:
            fused = self._fused_sites(modules[name]) if name in modules else []
            found = [f for f in fused if _place_of(f) == (rule, file, line)]
            if not found:
                return {}
            sites[modules[name]] += found
        return dict(sites)

    def _key(self) -> str:
        names = {module: state.name for module, state in self._planner.states.items()}
        forwards = [
            f"{names[module]} {sorted(map(str, dropped))} {plan.variant.source}"
            for module in self._running_modules()
            for dropped, plan in self._planner.plans_in_mode(module, self._training).items()
            if plan.variant is not None
        ]
        return remembered_times.step_key(self._model, self._call, forwards, self._training)

    def _why_not_timed(self) -> str:
        if self._planner.sharded:
            return "its parameters are sharded"
        if self._model not in self._planner.calls[self._training]:
            return f"the model could not be called for {step_mode(self._training)}"
        return why_no_room(
            step_bytes(self._model, self._planner.created_bytes.get(self._model, BytesByDevice())), "timing it"
        )

    def _running_modules(self) -> list[nn.Module]:
        return _running_modules(self._planner, self.verdicts, self._training)

    @contextmanager
    def _steps(self) -> Iterator[ModelSteps]:
        copy = ModelSteps(self._model, self._call, self._planner, self._training)
        with quiet_steps(), copy.prepare(LONGEST) as steps:
            yield steps

    def _groups(self, running: Modules) -> list[list[nn.Module]]:
        """The modules in groups of equal layers."""
        groups: defaultdict[Hashable, list[nn.Module]] = defaultdict(list)
        for module in running:
            plans = self._planner.plans_in_mode(module, self._training).items()
            key = tuple((dropped, p.forward, bool(p.narrowed)) for dropped, p in plans if p.variant)
            groups[type(module), key].append(module)
        return list(groups.values())

    def _slow_groups(self, steps: ModelSteps, groups: Sequence[list[nn.Module]]) -> list[list[nn.Module]]:
        """The groups that make the step slower, found by bisection among groups that together are slow."""
        if len(groups) == 1:
            return list(groups)
        halves = groups[: len(groups) // 2], groups[len(groups) // 2 :]
        slow = [half for half in halves if is_slower(steps.compare([m for group in half for m in group]))]
        # If no half is slow by itself, only the groups together are.
        return [group for half in slow for group in self._slow_groups(steps, half)] or list(groups)

    def _exclude_slow_sites(self, group: Sequence[nn.Module], found: JudgedTimings) -> None:
        """Exclude the site of these modules that makes the step slower, or all sites if no single one does."""
        sites = {(f.rule, f.place): f for m in group for f in self._fused_sites(m)}
        if 1 < len(sites) <= _MOST_SITES:
            before = {m: self._planner.states[m].exclusions for m in group}
            for one in sites.values():
                self._exclude(group, [one])
                if not self._is_slow(group):
                    return self._note_slower(group, [one], found)
                # Without this site the step is still slow, so the site is included again.
                for module, exclusions in before.items():
                    self._planner.states[module].exclusions = exclusions
                    self._planner.exclude_in_mode(module, (), self._training)
        self._note_slower(group, list(sites.values()), found)
        self._exclude(group, list(sites.values()))

    def _fused_sites(self, module: nn.Module) -> list[Found]:
        return [f for p in self._planner.plans_in_mode(module, self._training).values() for f in p.found if f.fused]

    def _exclude(self, group: Sequence[nn.Module], sites: Sequence[Found]) -> None:
        for module in group:
            exclude_sites(self._planner, module, sites, self._training)
        if self._check is not None:
            self.verdicts = self._check()

    def _is_slow(self, group: Sequence[nn.Module]) -> bool:
        running = [m for m in self._running_modules() if m in group]
        if not running:
            return False
        with self._steps() as steps:
            return is_slower(steps.compare(running))

    def _note_slower(self, group: Sequence[nn.Module], sites: Sequence[Found], found: JudgedTimings) -> None:
        """Note that these sites made a step slower, for the report and for later processes."""
        self._note(group, sites, found.effect)
        names = [self._planner.states[module].name for module in group]
        self._slow_places += [(name, *place) for name in names for f in sites if (place := _place_of(f))]
        self._is_clear &= found.judgement.verdict == "regressed" and all(f.place for f in sites)

    def _note(self, group: Sequence[nn.Module], sites: Sequence[Found], ratio: Estimate) -> None:
        step = "training step" if self._training else "forward pass"
        why = because(outcomes.SLOWS_STEP, step=step, ratio=ratio)
        for module in group:
            name = self._planner.states[module].name
            self.slower += [SlowerSite(declined_site(name, f, why), (self._training,)) for f in sites]

    def _time_again(self) -> JudgedTimings | None:
        """Time the step again; None if no fused site is left."""
        if not self._running_modules():
            return None
        with self._steps() as steps:
            found = compare_fused_steps(steps, self._running_modules())
        if not is_slower(found):
            return found
        for group in self._groups(self._running_modules()):
            sites = list({(f.rule, f.place): f for m in group for f in self._fused_sites(m)}.values())
            self._note_slower(group, sites, found)
            self._exclude(group, sites)
        return None


def _running_modules(planner: Planner, verdicts: Verdicts | None, training: bool) -> list[nn.Module]:
    """The modules that run a rewritten forward in a mode."""
    planned = dict.fromkeys(m for (m, (mode, _)), p in planner.plans.items() if mode is training and p.variant)
    return [m for m in planned if verdicts is None or m in verdicts]


def _out_of_range(steps: ModelSteps) -> str:
    """The reason why steps of this duration are not timed, or ""."""
    if _SURELY_LONG < steps.first_seconds <= longest_step():
        return ""  # no estimate is needed, and a run of such a step is expensive
    seconds = estimate_seconds(steps.step(()), steps.device)
    if steps.device.type == "cpu" and seconds < SHORTEST:
        return f"a step takes {milliseconds(seconds)}, which is mostly overhead of Python"
    if seconds > longest_step():
        return f"a step takes {seconds:.0f} s; optimize(..., profile=True) times it anyway"
    return ""


def _place_of(found: Found) -> tuple[str, str, int] | None:
    """The rule, the file and the line of a site."""
    return (found.rule, found.place.file, found.place.line) if found.place else None
