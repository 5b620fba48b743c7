"""From what was measured of some candidates to an order of preference and the reason for it.

Pure arithmetic on times, bytes and errors; it knows neither tensors nor how anything was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autofuse.kernels.policy import Policy
from autofuse.measure.race import DROP_RATIO, RESAMPLES, typical
from autofuse.measure.statistics import estimate
from autofuse.results.comparison import Estimate, milliseconds, size
from autofuse.results.tuning import Trial

ORIGINAL = "original"
_FIRST = (ORIGINAL, "torch")  # in this order, where nothing tells candidates apart
TOO_NOISY = 1.25  # identical runs that differ by so much cannot show that two candidates are equally fast
LEAST_GAIN = 1.02  # whoever is called faster is faster by 2 % at least: less is not worth another dependency
SAME_BYTES = 1.05  # peaks that differ by less than 5 % count as equal
SAME_ERROR, NO_ERROR = 1.25, 0.1  # errors that differ by a quarter do, and all that use up a tenth of their bound

Samples = Mapping[str, Sequence[float]]
Trials = Sequence[Trial]


@dataclass(frozen=True)
class CandidateTime:
    """The candidates that were timed: what is known of each, its samples (seconds; equal positions were taken next to
    each other; one that was plainly slower may have few), and the ratio of identical runs."""

    trials: Trials
    samples: Samples
    control: Estimate

    def slower(self, name: str, than: str) -> bool:
        """Whether `name` takes longer by more than chance: its interval excludes 1, and the ratio is one that identical
        runs do not reach."""
        one, other = self.samples[name], self.samples[than]
        if len(one) < len(other) and min(one) > DROP_RATIO * typical(other):
            return True  # it was let go, and not for another's sake
        pairs = list(zip(one, other, strict=False))
        ratio = estimate(*zip(*pairs, strict=True), resamples=RESAMPLES, typical=typical)
        return ratio.interval.low > 1 and ratio.ratio > max(self.noise, LEAST_GAIN)

    @property
    def noise(self) -> float:
        """The factor by which identical runs may differ: the farther end of the control's interval."""
        return math.exp(max(abs(math.log(end)) for end in self.control.interval))

    def unclear(self, name: str) -> str:
        """Why no choice of `name` for its speed means anything, as a sentence; "" where it does."""
        if self.noise < TOO_NOISY or all(t.name == name or self.slower(t.name, name) for t in self.trials):
            return ""
        return f"The machine is not steady: identical runs differ by up to {self.noise:.1f} times. The default holds."


def ranked(measured: CandidateTime, policy: Policy) -> tuple[tuple[str, ...], str]:
    """The candidates, best first, and a sentence that says why the first one is.

    - speed: the fastest beyond noise; among those that are equally fast, the one with the least memory.
    - memory: the least memory (`Trial.memory`); among those that take as much, the fastest.
    - accuracy: the smallest error against its bound; among those that are as exact, the fastest, and the least memory.

    Where that leaves several, the original stays, or torch's own code, or the candidate that was named first.
    """
    left = list(measured.trials)
    order, reasons = list[str](), list[str]()
    while left:
        best, reason = _best(measured, left, _CRITERIA[policy])
        order.append(best.name)
        reasons.append(reason)
        left.remove(best)
    return tuple(order), reasons[0]


def _best(measured: CandidateTime, among: Trials, criteria: Sequence[ChoiceCriterion]) -> tuple[Trial, str]:
    """The best of some candidates, and the criterion that told it from the last others."""
    if len(among) == 1:
        return among[0], f"No other candidate can run here. A call takes {_time(among[0])}."
    equal = ""
    for criterion in criteria:
        kept = criterion.best(measured, among)
        if len(kept) == 1:
            best, other = kept[0], min((t for t in among if t is not kept[0]), key=criterion.order)
            shown = f"{criterion.shown(best)} against {criterion.shown(other)} of {other.name}"
            return best, f"{equal or 'It'} {criterion.says}: {shown}."
        among, equal = kept, f"Of those that are {criterion.equal} it"
    first = next((t for name in _FIRST for t in among if t.name == name), among[0])
    others = ", ".join(f"{t.name} {_time(t)}" for t in among if t is not first)
    return first, f"Nothing beats it: {_time(first)} a call, {others}, which is no difference beyond noise."


@dataclass(frozen=True)
class ChoiceCriterion:
    """One way to tell candidates apart: which of them are best by it, what it says of the only best one and of several,
    how that is shown, and the order in which it sees them."""

    best: Callable[[CandidateTime, Trials], Trials]
    says: str
    equal: str
    shown: Callable[[Trial], str]
    order: Callable[[Trial], float]


def _fastest(measured: CandidateTime, among: Trials) -> Trials:
    best = min(among, key=_seconds)
    return [t for t in among if t is best or not measured.slower(t.name, best.name)]


def _least_memory(measured: CandidateTime, among: Trials) -> Trials:
    """Those within 5 % of the least; all of them where any is not known."""
    if any(t.memory is None for t in among):
        return among
    return [t for t in among if _bytes(t) <= SAME_BYTES * min(map(_bytes, among))]


def _most_exact(measured: CandidateTime, among: Trials) -> Trials:
    least = min(t.inexactness for t in among)
    return [t for t in among if t.inexactness <= max(SAME_ERROR * least, NO_ERROR)]


def _seconds(trial: Trial) -> float:
    return math.inf if trial.seconds is None else trial.seconds


def _bytes(trial: Trial) -> float:
    return math.inf if trial.memory is None else trial.memory


def _time(trial: Trial) -> str:
    return milliseconds(trial.seconds or 0.0)


def _memory(trial: Trial) -> str:
    return size(trial.memory)


def _error(trial: Trial) -> str:
    return f"{trial.inexactness:.2f} of the bound"


_SPEED = ChoiceCriterion(_fastest, "is the fastest", "equally fast", _time, _seconds)
_MEMORY = ChoiceCriterion(
    _least_memory, "takes the least memory, at its peak and kept for the backward", "alike in memory", _memory, _bytes
)
_ACCURACY = ChoiceCriterion(_most_exact, "has the smallest error", "equally exact", _error, lambda t: t.inexactness)
_CRITERIA: Mapping[Policy, Sequence[ChoiceCriterion]] = {
    "speed": (_SPEED, _MEMORY),
    "memory": (_MEMORY, _SPEED),
    "accuracy": (_ACCURACY, _SPEED, _MEMORY),
}
