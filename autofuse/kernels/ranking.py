"""Ranks measured candidates, and gives the reason for the first place.

Pure arithmetic on times, bytes and errors, without tensors.
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
_FIRST = (ORIGINAL, "torch")  # the order of preference for candidates that are equal
TOO_NOISY = 1.25  # if identical runs differ by this factor, two candidates cannot be shown to be equally fast
LEAST_GAIN = 1.02  # "faster" means faster by at least 2 %; less is not worth another dependency
SAME_BYTES = 1.05  # peaks that differ by less than 5 % count as equal
SAME_ERROR, NO_ERROR = 1.25, 0.1  # errors within a factor of 1.25 count as equal, and all below a tenth of their bound

Samples = Mapping[str, Sequence[float]]
Trials = Sequence[Trial]


@dataclass(frozen=True)
class CandidateTime:
    """The candidates that were timed.

    Attributes:
        trials: what is known about each.
        samples: times in seconds, by name. Samples at equal positions were taken next to each other. A clearly slower
            candidate may have few.
        control: the ratio of identical runs.
    """

    trials: Trials
    samples: Samples
    control: Estimate

    def slower(self, name: str, than: str) -> bool:
        """Whether `name` takes longer than `than`, beyond chance.

        The interval of the ratio must exclude 1, and the ratio must be larger than that of identical runs.
        """
        times_of_name, other = self.samples[name], self.samples[than]
        if len(times_of_name) < len(other) and min(times_of_name) > DROP_RATIO * typical(other):
            return True  # the race dropped it because it was slower than `than`
        pairs = list(zip(times_of_name, other, strict=False))
        ratio = estimate(*zip(*pairs, strict=True), resamples=RESAMPLES, typical=typical)
        return ratio.interval.low > 1 and ratio.ratio > max(self.noise, LEAST_GAIN)

    @property
    def noise(self) -> float:
        """The factor by which identical runs may differ: the farther end of the control's interval."""
        return math.exp(max(abs(math.log(end)) for end in self.control.interval))

    def unclear(self, name: str) -> str:
        """The reason why the speed of `name` does not justify choosing it, as a sentence; "" if it does."""
        if self.noise < TOO_NOISY or all(t.name == name or self.slower(t.name, name) for t in self.trials):
            return ""
        return f"Too noisy to decide: identical runs differ by up to {self.noise:.1f}x. The default holds."


def rank(measured: CandidateTime, policy: Policy) -> tuple[tuple[str, ...], str]:
    """The candidates, best first, and a sentence with the reason for the first place.

    - speed: the fastest beyond noise; of equally fast candidates, the one with the least memory.
    - memory: the least memory (`Trial.memory`); of equal candidates, the fastest.
    - accuracy: the smallest error relative to its bound; of equal candidates, the fastest, then the least memory.

    If several remain, the original stays, otherwise torch's code, otherwise the candidate that comes first.
    """
    remaining = list(measured.trials)
    order, reasons = list[str](), list[str]()
    while remaining:
        best, reason = _best(measured, remaining, _CRITERIA[policy])
        order.append(best.name)
        reasons.append(reason)
        remaining.remove(best)
    return tuple(order), reasons[0]


def _best(measured: CandidateTime, among: Trials, criteria: Sequence[ChoiceCriterion]) -> tuple[Trial, str]:
    """The best of some candidates, and the criterion that separates it from the last others."""
    if len(among) == 1:
        return among[0], f"No other candidate can run this call. It takes {_time(among[0])}."
    equal = ""
    for criterion in criteria:
        best_ones = criterion.best(measured, among)
        if len(best_ones) == 1:
            best, other = best_ones[0], min((t for t in among if t is not best_ones[0]), key=criterion.order)
            shown = f"{criterion.shown(best)}, against {criterion.shown(other)} for {other.name}"
            return best, f"{equal or 'It'} {criterion.says}: {shown}."
        among, equal = best_ones, f"Of the candidates that are {criterion.equal}, it"
    first = next((t for name in _FIRST for t in among if t.name == name), among[0])
    others = ", ".join(f"{t.name} {_time(t)}" for t in among if t is not first)
    return first, f"No candidate is better beyond noise: {first.name} takes {_time(first)} for a call, {others}."


@dataclass(frozen=True)
class ChoiceCriterion:
    """One way to separate candidates.

    Attributes:
        best: returns the candidates that are best by this criterion.
        says: what to report about the only best one.
        equal: what to report about several best ones.
        shown: the value of a candidate, for reports.
        order: the value of a candidate, for sorting.
    """

    best: Callable[[CandidateTime, Trials], Trials]
    says: str
    equal: str
    shown: Callable[[Trial], str]
    order: Callable[[Trial], float]


def _fastest(measured: CandidateTime, among: Trials) -> Trials:
    best = min(among, key=_seconds)
    return [t for t in among if t is best or not measured.slower(t.name, best.name)]


def _least_memory(measured: CandidateTime, among: Trials) -> Trials:
    """The candidates within 5 % of the least memory; all of them if the memory of any is unknown."""
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
    _least_memory, "takes the least memory, at its peak and saved for the backward", "equal in memory", _memory, _bytes
)
_ACCURACY = ChoiceCriterion(_most_exact, "has the smallest error", "equally exact", _error, lambda t: t.inexactness)
_CRITERIA: Mapping[Policy, Sequence[ChoiceCriterion]] = {
    "speed": (_SPEED, _MEMORY),
    "memory": (_MEMORY, _SPEED),
    "accuracy": (_ACCURACY, _SPEED, _MEMORY),
}
