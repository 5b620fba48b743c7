"""Whether a whole step of the model gains by what is fused in it; what makes it slower is found, and not fused.

Training and inference are timed apart, on a copy of the model, in interleaved pairs of the original and the fused step.
Knows copies, plans and who is to blame; how steps are timed and judged is in measure/step_pairs.py.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from torch import nn

from autofuse.display.progress import Tell
from autofuse.fx.rewrite.module_plan import Found
from autofuse.fx.session import remembered_times
from autofuse.fx.session.gain_checks import SlowerPlace, declined_site, leave_out
from autofuse.fx.session.memory_room import lack_of_room, step_takes
from autofuse.fx.session.model_steps import ModelSteps, Modules, undisturbed
from autofuse.fx.session.planner import Planner
from autofuse.fx.session.site_checks import Verdicts
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.measure.compare import device_of
from autofuse.measure.created_bytes import BytesByDevice
from autofuse.measure.pair_count import JudgedTimings
from autofuse.measure.step_pairs import estimate_seconds, is_slower, longest_step
from autofuse.reasons import outcomes
from autofuse.reasons.reason import because
from autofuse.results.comparison import Estimate, Interval, milliseconds
from autofuse.results.step_times import StepMode, StepTime, step_mode
from autofuse.verify.out_of_memory import is_out_of_memory

SHORTEST = 1e-3  # seconds: a shorter step is mostly the time in which Python calls operators
_MOST_PLACES = 4  # of one kind of module that are tried one by one
_LOG = logging.getLogger("autofuse")


@dataclass(frozen=True)
class _Kept:
    """A step that was not slower, as it is kept for processes to come."""

    before: float = 0.0
    after: float = 0.0
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    verdict: str = ""
    pairs: int = 0
    clock: str = "wall"

    @classmethod
    def of(cls, time: StepTime) -> _Kept:
        low, high = time.interval or (0.0, 0.0)
        return cls(time.before_seconds or 0.0, time.after_seconds or 0.0, time.ratio or 0.0, low, high,
                   str(time.verdict), time.pairs, time.clock)  # fmt: skip

    def time(self, mode: StepMode) -> StepTime:
        return StepTime(mode, self.before, self.after, self.ratio, Interval(self.low, self.high), self.verdict,  # type: ignore[arg-type]
                        self.pairs, self.clock, remembered=True)  # type: ignore[arg-type] # fmt: skip


class StepCheck(NamedTuple):
    """The verdicts on what remains, the places that make a step slower, and what steps take."""

    verdicts: Verdicts
    slower: tuple[SlowerPlace, ...] = ()
    steps: tuple[StepTime, ...] = ()


def keep_faster_steps(
    model: nn.Module, call: ForwardArguments, planner: Planner, verdicts: Verdicts,
    check: Callable[[], Verdicts] | None, tell: Tell,
) -> StepCheck:  # fmt: skip
    """Time whole steps of `model`, called with `call`, and plan again without what makes a step slower.

    `check` judges what is planned then; None where nothing is verified.
    """
    slower, steps = list[SlowerPlace](), list[StepTime]()
    modes = [model.training, not model.training]
    for training in tell("timing whole steps", modes, len(modes)):
        if not _running(planner, verdicts if check else None, training):
            continue
        weighing = _Weighing(model, call, planner, training, verdicts if check else None, check)
        try:
            steps.append(weighing.weighed())
        except Exception as error:  # the step is the user's code: what was checked stays fused
            _LOG.debug("a whole step could not be timed: %s: %s", type(error).__name__, error)
            why = "memory ran out" if is_out_of_memory(error) else f"it raised {type(error).__name__} on a copy"
            steps.append(StepTime(step_mode(training), not_timed=why))
        slower += weighing.slower
        verdicts = verdicts if weighing.verdicts is None else weighing.verdicts
    return StepCheck(verdicts, tuple(slower), tuple(steps))


class _Weighing:
    """One mode of one model. `verdicts` is None where nothing is verified."""

    def __init__(
        self, model: nn.Module, call: ForwardArguments, planner: Planner, training: bool,
        verdicts: Verdicts | None, check: Callable[[], Verdicts] | None,
    ) -> None:  # fmt: skip
        self._model, self._call, self._planner, self._training = model, call, planner, training
        self.verdicts, self._check = verdicts, check
        self.slower: list[SlowerPlace] = []

    def weighed(self) -> StepTime:
        """What the step takes, with all that does not make it slower."""
        mode = step_mode(self._training)
        if why := self._why_not():
            return StepTime(mode, not_timed=why)
        place, device = self._place(), device_of(self._model, ())
        if (kept := remembered_times.found(place, device, _Kept)) is not None:
            return kept.time(mode)
        with self._steps() as steps:
            if why := _out_of_range(steps):
                return StepTime(mode, not_timed=why)
            running = self._running()
            found = steps.compared(running)
            guilty = self._guilty(steps, self._groups(running)) if is_slower(found) else []
        for group in guilty:
            self._take_back(group, found)
        left = self._again() if guilty else found
        if left is None:
            return StepTime(mode, not_timed="nothing is fused in it, as it was slower fused")
        time = _step_time(mode, left)
        if not guilty:
            remembered_times.keep(place, device, _Kept.of(time))
        return time

    def _place(self) -> str:
        names = {module: state.name for module, state in self._planner.states.items()}
        forwards = [
            f"{names[module]} {sorted(map(str, dropped))} {plan.variant.source}"
            for module in self._running()
            for dropped, plan in self._planner.in_mode(module, self._training).items()
            if plan.variant is not None
        ]
        return remembered_times.step_of(self._model, self._call, forwards, self._training)

    def _why_not(self) -> str:
        if self._planner.sharded:
            return "its parameters are sharded"
        if self._model not in self._planner.calls[self._training]:
            return f"the model could not be called for {step_mode(self._training)}"
        return lack_of_room(step_takes(self._model, self._planner.made.get(self._model, BytesByDevice())), "timing it")

    def _running(self) -> list[nn.Module]:
        return _running(self._planner, self.verdicts, self._training)

    @contextmanager
    def _steps(self) -> Iterator[ModelSteps]:
        with undisturbed(), ModelSteps(self._model, self._call, self._planner, self._training).ready() as steps:
            yield steps

    def _groups(self, running: Modules) -> list[list[nn.Module]]:
        """The modules, those that are alike together: equal layers are to blame together."""
        groups: defaultdict[Hashable, list[nn.Module]] = defaultdict(list)
        for module in running:
            plans = self._planner.in_mode(module, self._training).items()
            key = tuple((dropped, p.forward, bool(p.narrowed)) for dropped, p in plans if p.variant)
            groups[type(module), key].append(module)
        return list(groups.values())

    def _guilty(self, steps: ModelSteps, groups: Sequence[list[nn.Module]]) -> list[list[nn.Module]]:
        """The groups without which the step is not slower, found by halves; of groups known to be slow together."""
        if len(groups) == 1:
            return list(groups)
        halves = groups[: len(groups) // 2], groups[len(groups) // 2 :]
        slow = [half for half in halves if is_slower(steps.compared([m for group in half for m in group]))]
        return [group for half in slow for group in self._guilty(steps, half)] or list(groups)

    def _take_back(self, group: Sequence[nn.Module], found: JudgedTimings) -> None:
        """Leave out the place of these modules that makes the step slower; all of them where no single one does."""
        places = {(f.rule, f.place): f for m in group for f in self._places(m)}
        if 1 < len(places) <= _MOST_PLACES:
            before = {m: self._planner.states[m].exclusions for m in group}
            for one in places.values():
                self._leave_out(group, [one])
                if not self._is_slow(group):
                    return self._note(group, [one], found)
                for module, exclusions in before.items():
                    self._planner.states[module].exclusions = exclusions
                    self._planner.leave_out(module, (), self._training)
        self._note(group, list(places.values()), found)
        self._leave_out(group, list(places.values()))

    def _places(self, module: nn.Module) -> list[Found]:
        return [f for p in self._planner.in_mode(module, self._training).values() for f in p.found if f.fused]

    def _leave_out(self, group: Sequence[nn.Module], places: Sequence[Found]) -> None:
        for module in group:
            leave_out(self._planner, module, places, self._training)
        if self._check is not None:
            self.verdicts = self._check()

    def _is_slow(self, group: Sequence[nn.Module]) -> bool:
        running = [m for m in self._running() if m in group]
        if not running:
            return False
        with self._steps() as steps:
            return is_slower(steps.compared(running))

    def _note(self, group: Sequence[nn.Module], places: Sequence[Found], found: JudgedTimings) -> None:
        step = "training step" if self._training else "forward pass"
        why = because(outcomes.SLOWS_STEP, step=step, ratio=Estimate(found.effect.ratio, found.effect.interval))
        for module in group:
            name = self._planner.states[module].name
            self.slower += [SlowerPlace(declined_site(name, f, why), (self._training,)) for f in places]

    def _again(self) -> JudgedTimings | None:
        """What the step takes now; None where all of it had to go."""
        if not self._running():
            return None
        with self._steps() as steps:
            found = steps.compared(self._running())
        if not is_slower(found):
            return found
        for group in self._groups(self._running()):
            places = list({(f.rule, f.place): f for m in group for f in self._places(m)}.values())
            self._note(group, places, found)
            self._leave_out(group, places)
        return None


def _running(planner: Planner, verdicts: Verdicts | None, training: bool) -> list[nn.Module]:
    """The modules that are to run something else in a mode than what was written."""
    planned = dict.fromkeys(m for (m, (mode, _)), p in planner.plans.items() if mode is training and p.variant)
    return [m for m in planned if verdicts is None or m in verdicts]


def _out_of_range(steps: ModelSteps) -> str:
    """Why steps of this length are not timed."""
    seconds = estimate_seconds(steps.step(()), steps.device)
    if steps.device.type == "cpu" and seconds < SHORTEST:
        return f"a step takes {milliseconds(seconds)}, which is mostly Python's own time"
    if seconds > longest_step():
        return f"a step takes {seconds:.0f} s; optimize(..., profile=True) times it all the same"
    return ""


def _step_time(mode: Any, found: JudgedTimings) -> StepTime:
    timings = found.timings
    by_core = found.clock == "core"
    before, after = (timings.before_core, timings.after_core) if by_core else (timings.before, timings.after)
    return StepTime(
        mode, median(before), median(after), found.effect.ratio, found.effect.interval,
        found.judgement.verdict, len(before), found.clock,
    )  # fmt: skip
