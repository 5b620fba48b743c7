"""tune(operation, args): measures which candidate is the best for a call on this machine, and why.

Candidates are the operation's providers that support the call, and functions that the caller adds: the code that the
operation replaces. Each must compute what torch's code computes (autofuse/verify/functions.py). Those that do are timed
against each other (autofuse/measure/race.py), forward and backward together, and their memory is measured. The policy
chooses (autofuse/kernels/ranking.py), and the decision is stored (autofuse/kernels/decisions.py). The user's tensors,
gradients, random states, modes and settings stay unchanged.
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
from autofuse.kernels.operation import OPERATIONS, Operation, is_plain, is_traced
from autofuse.kernels.policy import settings
from autofuse.kernels.provider import Provider
from autofuse.kernels.ranking import ORIGINAL, CandidateTime, rank
from autofuse.measure.available_memory import free_bytes
from autofuse.measure.memory import measure_held_memory, measure_peak_memory
from autofuse.measure.preserved_state import preserve_state
from autofuse.measure.timing import seconds_of
from autofuse.results.tuning import Trial, TuningResult
from autofuse.torch_private.nested import tensors_in
from autofuse.verify.calls import Function, FunctionCall
from autofuse.verify.functions import FunctionReference, InexactResult, WrongResult

SECONDS = 0.3  # for each candidate, after warm-up
# Shorter calls of torch's code, in seconds, are too noisy to compare.
SHORTEST = {"cpu": 1e-4}
SHORTEST_ELSEWHERE = 2e-5  # accelerators are timed over many calls in a row
# The check holds this many copies of the arguments in float64: the exact and torch's results and gradients, those of
# one candidate, and the intermediate values of a formula.
_COPIES = 12


def tune(
    operation: Operation | str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *,
    training: bool | None = None, extra_candidates: Mapping[str, Function] | None = None, site: str = "",
    seconds: float = SECONDS, again: bool = False,
) -> TuningResult:  # fmt: skip
    """Measures which candidate is the best for `operation` with these arguments.

    The cost is that of compiling and warming up each candidate, of one call in float64, and of `seconds` for each.
    Policy, deterministic kernels and excluded providers come from autofuse.kernels.policy.

    Args:
        operation: an operation or its name.
        args: the arguments of its public function.
        kwargs: its keyword arguments.
        training: whether to time forward and backward, for the tensors that require a gradient. None means: if any does
            and gradients are enabled.
        extra_candidates: other functions with the same parameters, by name. "original" stays unless another is better.
        site: the name of this place in the cache, which separates it from others with the same kind of call. Without
            it, a measurement with extra candidates is not stored.
        seconds: the time for each candidate.
        again: measure even if a decision is stored.

    Returns:
        The decision, with all trials.

    Raises:
        ValueError: if the operation does not exist, or the first argument is not a tensor.
    """
    op, named = _operation(operation), dict(kwargs or {})
    if not args or not isinstance(args[0], Tensor):
        raise ValueError(f"The first argument of {op.name} must be a tensor, which decides about the provider.")
    if training is None:
        training = torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in((tuple(args), named)))
    extra = dict(extra_candidates or {})
    with torch.set_grad_enabled(training):
        kind = op.kind(*args, **named)
    kept = not extra or bool(site)
    if kept and not again and (known := decision(kind, site)) is not None:
        return known
    result = _Tuning(op, kind, args, named, training, extra, seconds).result()
    if result.measured and kept:
        decide(kind, result, site)
    if result.measured and (not kept or site):
        decide(kind, without_candidates(result, extra))
    op.forget()
    return result


def without_candidates(result: TuningResult, names: Iterator[str] | Mapping[str, Any]) -> TuningResult:
    """The same decision without these candidates."""
    left_out = set(names)
    ranking = tuple(n for n in result.ranking if n not in left_out)
    trials = tuple(t for t in result.trials if t.name not in left_out)
    return replace(result, winner=ranking[0], ranking=ranking, trials=trials)


def _operation(operation: Operation | str) -> Operation:
    if isinstance(operation, Operation):
        return operation
    if operation not in OPERATIONS:
        raise ValueError(f"There is no operation {operation!r}. Use one of {', '.join(sorted(OPERATIONS))}.")
    return OPERATIONS[operation]


class _Unmeasured(Exception):
    """Ends a measurement without a decision, so that the default holds. The message says why.

    `trials` holds what was measured nevertheless.
    """

    def __init__(self, why: str, trials: tuple[Trial, ...] = ()) -> None:
        super().__init__(why)
        self.trials = trials


@dataclass(frozen=True)
class _Tuning:
    """One measurement. Candidates that are excluded are stored with the reason."""

    operation: Operation
    kind: Kind
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    training: bool
    extra: Mapping[str, Function]
    seconds: float

    def result(self) -> TuningResult:
        runs, refusals = self._candidates()
        default = next(iter(runs))
        try:
            with _preserve_user_state():
                return self._measure(runs, refusals)
        except _Unmeasured as reason:
            made = self._result_for(default, f"{reason}", refusals)
            return replace(made, trials=reason.trials or made.trials)

    def _candidates(self) -> tuple[dict[str, Function], dict[str, str]]:
        """The candidates that may run, with the default first, and the reasons why the others may not."""
        operation, first = self.operation, self.args[0]
        runs, refusals = dict[str, Function](), dict[str, str]()
        for provider in sorted(operation.providers, key=lambda p: (p is operation.torch, not p.default)):
            why = operation.refusal(provider, self.kind, first.dtype)
            if not why and provider is not operation.torch:
                why = self._size_refusal() or self._check_refusal(provider)
            if why:
                refusals[provider.name] = why
            else:
                runs[provider.name] = provider.run
        default = next(n for n in runs if operation.provider(n).default or n == operation.torch.name)
        return {default: runs[default], **runs, **self.extra}, refusals

    def _check_refusal(self, provider: Provider) -> str:
        """The reason that the provider's check returns. A check that raises an error refuses."""
        try:
            return provider.check(*self.args, **self.kwargs)
        except Exception as error:
            return f"Its check raised {_describe_error(error)}"

    def _size_refusal(self) -> str:
        few, least = self.args[0].numel(), self.operation.least_for(self.args[0])
        return f"Below {least} elements plain torch code runs; this call has {few}." if few < least else ""

    def _measure(self, runs: dict[str, Function], refusals: dict[str, str]) -> TuningResult:
        self._require_measurable(runs)
        call = FunctionCall.of(self.args, self.kwargs, self.training)
        _require_long_enough(self.operation.torch.run, call)
        reference = _reference(self.operation.torch.run, call)
        trials = {name: _check_candidate(name, run, reference, self.kind.deterministic) for name, run in runs.items()}
        refusals |= {name: t.refused for name, t in trials.items() if t.refused}
        accepted = {name: run for name, run in runs.items() if not trials[name].refused}
        if not accepted:
            raise _Unmeasured("No candidate computes the right result.")
        measured = _time_candidates(accepted, trials, call, self.seconds)
        ranking, why = rank(measured, settings().policy)
        found = (*measured.trials, *(trials.get(n, Trial(n, refused=reason)) for n, reason in refusals.items()))
        if settings().policy == "speed" and (noise := measured.unclear(ranking[0])):
            raise _Unmeasured(noise, found)
        made = self._result_for(ranking[0], why, refusals)
        return replace(made, measured=True, ranking=ranking, control=measured.control, trials=found)

    def _require_measurable(self, runs: Mapping[str, Function]) -> None:
        """Checks that a measurement is possible and represents the call.

        Raises:
            _Unmeasured: if there is nothing to measure, or the call would differ from a measured one.
        """
        if len(runs) == 1:
            raise _Unmeasured("No other candidate supports this call.")
        if is_traced() or not is_plain(*tensors_in((tuple(self.args), dict(self.kwargs)))):
            raise _Unmeasured("Under a transform or on tensor subclasses plain torch code always runs.")
        needed = sum(t.numel() for t in tensors_in((tuple(self.args), dict(self.kwargs)))) * 8 * _COPIES
        free = free_bytes(self.args[0].device)
        if free is not None and needed > free:
            raise _Unmeasured(
                f"The check needs about {needed / 2**30:.1f} GiB of memory, but only {free / 2**30:.1f} GiB are free."
            )

    def _result_for(self, winner: str, why: str, refusals: Mapping[str, str]) -> TuningResult:
        return TuningResult(
            self.operation.name, winner, why,
            arguments=describe_arguments(self.args, self.kwargs), device=str(self.args[0].device),
            training=self.training, policy=settings().policy, deterministic=self.kind.deterministic, ranking=(winner,),
            trials=tuple(Trial(name, refused=reason) for name, reason in refusals.items()),
        )  # fmt: skip


def _require_long_enough(run: Function, call: FunctionCall) -> None:
    step = call.step(run)
    for _ in range(WARM):
        step()
    duration = median(seconds_of(step, call.device) for _ in range(WARM))
    shortest = SHORTEST.get(call.device.type, SHORTEST_ELSEWHERE)
    if duration < shortest:
        raise _Unmeasured(
            f"A call of torch's code takes {duration * 1e6:.0f} us, too short to compare candidates (less than "
            f"{shortest * 1e6:.0f} us). The default holds."
        )


def _reference(run: Function, call: FunctionCall) -> FunctionReference:
    try:
        return FunctionReference(run, call)
    except Exception as error:
        raise _Unmeasured(f"torch's code does not run in float64: {_describe_error(error)}") from error


def _check_candidate(name: str, run: Function, reference: FunctionReference, deterministic: bool) -> Trial:
    """The candidate with its error, or the reason for its refusal. The user's own code may be less accurate."""
    try:
        gap = reference.compare(run)
        if deterministic and not reference.is_deterministic(run):
            return Trial(name, refused="It is not deterministic: two equal calls gave different bits.")
        return Trial(name, error=gap.error, bound=gap.bound)
    except InexactResult as wrong:
        refusals = "" if name == ORIGINAL else str(wrong)
        return Trial(name, refused=refusals, error=wrong.gap.error, bound=wrong.gap.bound)
    except WrongResult as wrong:
        return Trial(name, refused=str(wrong))
    except Exception as error:  # a kernel of another package may raise anything
        return Trial(name, refused=f"It raised {_describe_error(error)}")


def _time_candidates(
    runs: Mapping[str, Function], trials: Mapping[str, Trial], call: FunctionCall, seconds: float
) -> CandidateTime:
    steps = {name: call.step(run) for name, run in runs.items()}
    known = [_with_memory(trials[name], run, steps[name], call) for name, run in runs.items()]
    return race_steps(steps, known, seconds, call.device)


def _with_memory(trial: Trial, run: Function, step: Callable[[], object], call: FunctionCall) -> Trial:
    """The trial with the memory of one call."""
    held = measure_held_memory(lambda: call.result_of(run), call.device).bytes if call.backward else 0
    return replace(trial, peak_bytes=measure_peak_memory(step, call.device).bytes, held_bytes=held)


@contextmanager
def _preserve_user_state() -> Iterator[None]:
    """Restores random states, grad mode and autocast's cache. In the block, tensors can require gradients."""
    cache_was_enabled = torch.is_autocast_cache_enabled()
    with preserve_state([], []), torch.inference_mode(False):
        torch.set_autocast_cache_enabled(False)  # the cache would hold casts of our copies
        try:
            yield
        finally:
            torch.set_autocast_cache_enabled(cache_was_enabled)


def describe_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments in words, for example "bfloat16 (2048, 768), bfloat16 (768,), 1e-05"."""
    named = (f"{name}={_word(value)}" for name, value in kwargs.items())
    return ", ".join((*map(_word, args), *named))


def _word(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_word, value))})"
    return str(getattr(value, "__name__", value))


def _describe_error(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
