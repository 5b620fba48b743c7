"""tune(operation, args): which candidate is best for one call on this machine, and why. It puts the parts together.

Candidates are the operation's providers that can take the call, and whatever the caller adds: the code that the
operation stands for. Each has to compute what torch's own code computes (autofuse/verify/functions.py); those that do
are timed against each other (autofuse/measure/race.py), forward and backward together, and their memory is counted;
the policy chooses (autofuse/kernels/ranking.py). The decision is kept (autofuse/kernels/decisions.py).
The user's tensors, gradients, random states, modes and settings are left as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from autofuse.kernels.candidate_timing import WARM, race_steps
from autofuse.kernels.decisions import Kind, decide, decision
from autofuse.kernels.operation import OPERATIONS, Operation, is_plain, traced
from autofuse.kernels.policy import settings
from autofuse.kernels.provider import Provider
from autofuse.kernels.ranking import ORIGINAL, CandidateTime, ranked
from autofuse.measure.available_memory import free_bytes
from autofuse.measure.memory import measure_held_memory, measure_peak_memory
from autofuse.measure.preserved_state import preserve_state
from autofuse.measure.timing import seconds_of
from autofuse.results.tuning import Trial, TuningResult
from autofuse.torch_private.nested import tensors_in
from autofuse.verify.calls import Function, FunctionCall
from autofuse.verify.functions import FunctionReference, InexactResult, WrongResult

SECONDS = 0.3  # for each candidate, once it is warm
# What takes less than this, in seconds of a call of torch's code, cannot be told apart well enough to be worth it.
SHORTEST = {"cpu": 1e-4}
SHORTEST_ELSEWHERE = 2e-5  # accelerators are timed over many calls in a row
# Bytes of the arguments in float64 that the check holds at a time: the exact and torch's own results and gradients, one
# candidate's, and what a formula keeps in between.
_COPIES = 12


def tune(
    operation: Operation | str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *,
    training: bool | None = None, extra_candidates: Mapping[str, Function] | None = None, site: str = "",
    seconds: float = SECONDS, again: bool = False,
) -> TuningResult:  # fmt: skip
    """The best candidate for `operation` with these arguments, which are those of its public function.

    training: time forward and backward, for the tensors that require a gradient; None: if any does, where gradients are
    enabled. extra_candidates: other functions of the same arguments, by name; "original" stays unless another beats it.
    site: what tells this place from others with the same kind of call, for the cache; without it a measurement with
    extra candidates is not kept. seconds: for each candidate. again: measure what was decided before.
    The policy, deterministic kernels and providers left out are those of autofuse.kernels.policy.

    The cost of a decision is that of compiling and warming up each candidate, of one call in float64, and of `seconds`
    for each. Raises ValueError for an operation that does not exist, or a call without a tensor.
    """
    chosen, named = _operation(operation), dict(kwargs or {})
    if not args or not isinstance(args[0], Tensor):
        raise ValueError(f"{chosen.name} is chosen for by its first argument, which has to be a tensor.")
    if training is None:
        training = torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in((tuple(args), named)))
    extra = dict(extra_candidates or {})
    with torch.set_grad_enabled(training):
        kind = chosen.kind(*args, **named)
    kept = not extra or bool(site)
    if kept and not again and (known := decision(kind, site)) is not None:
        return known
    result = _Tuning(chosen, kind, args, named, training, extra, seconds).result()
    if result.measured and kept:
        decide(kind, result, site)
    if result.measured and (not kept or site):
        decide(kind, without(result, extra))
    chosen.forget()
    return result


def without(result: TuningResult, names: Iterator[str] | Mapping[str, Any]) -> TuningResult:
    """The same decision among the operation's own providers."""
    left_out = set(names)
    ranking = tuple(n for n in result.ranking if n not in left_out)
    trials = tuple(t for t in result.trials if t.name not in left_out)
    return replace(result, winner=ranking[0], ranking=ranking, trials=trials)


def _operation(operation: Operation | str) -> Operation:
    if isinstance(operation, Operation):
        return operation
    if operation not in OPERATIONS:
        raise ValueError(f"No operation is called {operation!r}. There are {', '.join(sorted(OPERATIONS))}.")
    return OPERATIONS[operation]


class _Unmeasured(Exception):
    """The default holds; the message is a sentence that says why, `trials` what was found nonetheless."""

    def __init__(self, why: str, trials: tuple[Trial, ...] = ()) -> None:
        super().__init__(why)
        self.trials = trials


@dataclass(frozen=True)
class _Tuning:
    """One measurement. Trials are collected by name, those of candidates that take no part with their reason."""

    operation: Operation
    kind: Kind
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    training: bool
    extra: Mapping[str, Function]
    seconds: float

    def result(self) -> TuningResult:
        runs, refused = self._candidates()
        default = next(iter(runs))
        try:
            with _undisturbed():
                return self._measured(runs, refused)
        except _Unmeasured as reason:
            made = self._made(default, f"{reason}", refused)
            return replace(made, trials=reason.trials or made.trials)

    def _candidates(self) -> tuple[dict[str, Function], dict[str, str]]:
        """What may run, the default first, and why the others may not."""
        operation, first = self.operation, self.args[0]
        runs, refused = dict[str, Function](), dict[str, str]()
        for provider in sorted(operation.providers, key=lambda p: (p is operation.torch, not p.default)):
            why = operation.refusal(provider, self.kind, first.dtype)
            if not why and provider is not operation.torch:
                why = self._small() or self._checked(provider)
            if why:
                refused[provider.name] = why
            else:
                runs[provider.name] = provider.run
        default = next(n for n in runs if operation.provider(n).default or n == operation.torch.name)
        return {default: runs[default], **runs, **self.extra}, refused

    def _checked(self, provider: Provider) -> str:
        """What its check says of the arguments; one that raises refuses."""
        try:
            return provider.check(*self.args, **self.kwargs)
        except Exception as error:
            return f"Its check raised {_told(error)}"

    def _small(self) -> str:
        few, least = self.args[0].numel(), self.operation.least_for(self.args[0])
        return f"Below {least} elements plain torch code runs; there are {few}." if few < least else ""

    def _measured(self, runs: dict[str, Function], refused: dict[str, str]) -> TuningResult:
        self._look(runs)
        call = FunctionCall.of(self.args, self.kwargs, self.training)
        _long_enough(self.operation.torch.run, call)
        reference = _reference(self.operation.torch.run, call)
        trials = {name: _checked(name, run, reference, self.kind.deterministic) for name, run in runs.items()}
        refused |= {name: t.refused for name, t in trials.items() if t.refused}
        able = {name: run for name, run in runs.items() if not trials[name].refused}
        if not able:
            raise _Unmeasured("No candidate passed the check.")
        measured = _timed(able, trials, call, self.seconds)
        ranking, why = ranked(measured, settings().policy)
        found = (*measured.trials, *(trials.get(n, Trial(n, refused=reason)) for n, reason in refused.items()))
        if settings().policy == "speed" and (unclear := measured.unclear(ranking[0])):
            raise _Unmeasured(unclear, found)
        made = self._made(ranking[0], why, refused)
        return replace(made, measured=True, ranking=ranking, control=measured.control, trials=found)

    def _look(self, runs: Mapping[str, Function]) -> None:
        """Raise _Unmeasured where there is nothing to measure, or nothing that would be like the call itself."""
        if len(runs) == 1:
            raise _Unmeasured("No other candidate can take this call.")
        if traced() or not is_plain(*tensors_in((tuple(self.args), dict(self.kwargs)))):
            raise _Unmeasured("It is called within a transformation or on tensors of another class: plain code runs.")
        needed = sum(t.numel() for t in tensors_in((tuple(self.args), dict(self.kwargs)))) * 8 * _COPIES
        free = free_bytes(self.args[0].device)
        if free is not None and needed > free:
            raise _Unmeasured(
                f"Checking takes about {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free."
            )

    def _made(self, winner: str, why: str, refused: Mapping[str, str]) -> TuningResult:
        return TuningResult(
            self.operation.name, winner, why,
            arguments=described(self.args, self.kwargs), device=str(self.args[0].device), training=self.training,
            policy=settings().policy, deterministic=self.kind.deterministic, ranking=(winner,),
            trials=tuple(Trial(name, refused=reason) for name, reason in refused.items()),
        )  # fmt: skip


def _long_enough(run: Function, call: FunctionCall) -> None:
    step = call.step(run)
    for _ in range(WARM):
        step()
    taken = median(seconds_of(step, call.device) for _ in range(WARM))
    shortest = SHORTEST.get(call.device.type, SHORTEST_ELSEWHERE)
    if taken < shortest:
        raise _Unmeasured(
            f"A call of torch's code takes {taken * 1e6:.0f} us, too short to tell candidates apart (less than "
            f"{shortest * 1e6:.0f} us): the default holds."
        )


def _reference(run: Function, call: FunctionCall) -> FunctionReference:
    try:
        return FunctionReference(run, call)
    except Exception as error:
        raise _Unmeasured(f"Torch's own code could not be run in double: {_told(error)}") from error


def _checked(name: str, run: Function, reference: FunctionReference, deterministic: bool) -> Trial:
    """The candidate with its error, or the reason why it is refused. What the user wrote may be less exact."""
    try:
        gap = reference.compare(run)
        if deterministic and not reference.is_deterministic(run):
            return Trial(name, refused="Two equal calls gave different bits, and deterministic ones are asked for.")
        return Trial(name, error=gap.error, bound=gap.bound)
    except InexactResult as wrong:
        refused = "" if name == ORIGINAL else str(wrong)
        return Trial(name, refused=refused, error=wrong.gap.error, bound=wrong.gap.bound)
    except WrongResult as wrong:
        return Trial(name, refused=str(wrong))
    except Exception as error:  # whatever a kernel of somebody's may raise
        return Trial(name, refused=f"It raised {_told(error)}")


def _timed(
    runs: Mapping[str, Function], trials: Mapping[str, Trial], call: FunctionCall, seconds: float
) -> CandidateTime:
    steps = {name: call.step(run) for name, run in runs.items()}
    known = [_weighed(trials[name], run, steps[name], call) for name, run in runs.items()]
    return race_steps(steps, known, seconds, call.device)


def _weighed(trial: Trial, run: Function, step: Callable[[], object], call: FunctionCall) -> Trial:
    """The trial with the memory of one call."""
    held = measure_held_memory(lambda: call.result_of(run), call.device).bytes if call.backward else 0
    return replace(trial, peak_bytes=measure_peak_memory(step, call.device).bytes, held_bytes=held)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Random states, gradients' mode and autocast's cache as they were; in the block, tensors can require gradients."""
    cached = torch.is_autocast_cache_enabled()
    with preserve_state([], []), torch.inference_mode(False):
        torch.set_autocast_cache_enabled(False)  # it would keep casts of our copies
        try:
            yield
        finally:
            torch.set_autocast_cache_enabled(cached)


def described(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments in words, e.g. "bfloat16 (2048, 768), bfloat16 (768,), 1e-05"."""
    named = (f"{name}={_word(value)}" for name, value in kwargs.items())
    return ", ".join((*map(_word, args), *named))


def _word(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_word, value))})"
    return str(getattr(value, "__name__", value))


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
