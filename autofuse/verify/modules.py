"""Verification: does a rewritten module compute the same as the original, forward and backward?

Every result and every gradient is checked in two ways, in training (with dropout off) and in evaluation:

- Meaning: do both agree if everything is computed in double?
- Precision: is the rewritten module's error in its own dtype as small as the original's? autofuse.verify.bounds derives
  the exact bound.

If there is dropout, its rate and its scaling are compared too (autofuse.verify.draws). The check does not depend on the
rewrite.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.verify.arithmetic import AsWrittenMode, DoubleMode
from autofuse.verify.bounds import RoundingSpread
from autofuse.verify.differences import are_equal_runs, find_difference_in_kind
from autofuse.verify.draws import DRAWS, dropout_difference
from autofuse.verify.expected import SAME_CONSTANT, ExpectedRuns, run_in_double, sample_dropout, tensor_or_zeros
from autofuse.verify.judging import TensorComparison, capitalize_first, judge_tensors
from autofuse.verify.other_calls import find_difference, other_calls
from autofuse.verify.out_of_memory import reraise_if_out_of_memory
from autofuse.verify.runs import SEED, SMALL, Gradients, ModuleCall, ModuleRun, run, temporary_double_copy

_UNEXPLAINED = 32.0  # units of error that count as rounding if the original does not run in double


@dataclass(frozen=True)
class Verification:
    """The verdict of a check.

    Attributes:
        ok: whether the rewritten module may replace the original.
        max_error: the error of the result or gradient that is closest to its bound, relative to its largest entry.
        bound: its bound, relative to the same entry.
        reason: a sentence; "" if `ok`.
        culprit: the result or gradient that differs: "result[0]", "gradient of x", "gradient of self.proj.weight".
        size: the part of the call that was checked; "" for the whole call.
    """

    ok: bool
    max_error: float = 0.0
    bound: float = 0.0
    reason: str = ""
    culprit: str = ""
    size: str = ""


def verify(
    original: nn.Module,
    rewritten: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    unread: frozenset[int] = frozenset(),
    copy_object: Callable[[Any], Any] = copy.deepcopy,
) -> Verification:
    """Check whether `rewritten` may replace `original`, with one call.

    Both modules run in training and in evaluation, with gradients. They are left as they were: parameters, buffers,
    attributes, gradients, modes, and the random number generators.

    Args:
        original: the original module.
        rewritten: a module with equal parameters.
        args: the positional arguments of the call.
        kwargs: the keyword arguments of the call.
        unread: the elements of a returned tuple that no caller reads; they are not compared.
        copy_object: copies arguments that are neither tensors nor containers, such as a key-value cache.
    """
    return ModuleReference(original, args, kwargs, unread=unread, copy_object=copy_object).check(rewritten)


class ModuleReference:
    """The runs of an original module, made once. It checks any number of rewritten modules against them."""

    def __init__(
        self,
        original: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None = None,
        *,
        unread: frozenset[int] = frozenset(),
        copy_object: Callable[[Any], Any] = copy.deepcopy,
        copy_module: Callable[[nn.Module], nn.Module] = copy.deepcopy,
        parts_checked: bool = False,
        modes: Collection[bool] = (True, False),
    ) -> None:
        """Take the arguments of `verify`.

        Args:
            original: the original module.
            args: the positional arguments of the call.
            kwargs: the keyword arguments of the call.
            unread: the elements of a returned tuple that no caller reads.
            copy_object: copies arguments that are neither tensors nor containers.
            copy_module: copies a module with its current forwards, to run it in double.
            parts_checked: whether the rewritten submodules have been checked one by one. Then dropout is sampled only
                if the rates of both modules differ.
            modes: the modes in which the call is made: True is training.
        """
        self._original, self._parts_checked, self._modes = original, parts_checked, modes
        self._call = ModuleCall(tuple(args), dict(kwargs or {}), unread, copy_object, copy_module=copy_module)
        self._others: dict[int, ModuleRun | type[Exception]] = {}

    def check(self, rewritten: nn.Module, *, other_inputs: bool = False) -> Verification:
        """Check whether `rewritten` may replace the original. An exception of the rewritten module becomes a reason.

        Args:
            rewritten: the rewritten module.
            other_inputs: also compare, in double, calls that differ from the example (other_calls.py).
        """
        outcome = self._check_call(rewritten)
        return (self.check_other_calls(rewritten) if outcome.ok and other_inputs else None) or outcome

    def _check_call(self, rewritten: nn.Module) -> Verification:
        """The verdict on the call itself."""
        checks: list[_Check] = []
        for expected in (self._training, self._evaluation):
            if isinstance(expected, str):
                continue
            checks.append(_Check(expected, rewritten, checks[0] if checks else None, self._parts_checked))
            if not checks[-1].outcome.ok:
                return checks[-1].outcome
        if not checks:
            return Verification(False, reason=f"The original does not run on the example inputs: {self._evaluation}.")
        return max((c.outcome for c in checks), key=lambda o: o.max_error / o.bound if o.bound else 0.0)

    @property
    def original(self) -> nn.Module:
        """The original module."""
        return self._original

    @property
    def call(self) -> ModuleCall:
        """The call that the check makes."""
        return self._call

    @property
    def parts_checked(self) -> bool:
        """Whether the rewritten submodules have been checked one by one."""
        return self._parts_checked

    @property
    def modes(self) -> Collection[bool]:
        """The modes in which the call is made."""
        return self._modes

    def on(self, call: ModuleCall) -> ModuleReference:
        """Return the reference of the same original for another call."""
        return ModuleReference(self._original, call.args, call.kwargs, unread=call.unread, copy_object=call.copy_object,
                               copy_module=call.copy_module, parts_checked=self._parts_checked,
                               modes=self._modes)  # fmt: skip

    @property
    def is_exact(self) -> bool:
        """Whether the original runs in double on this call, in every mode that it has."""
        runs = [e for e in (self._training, self._evaluation) if not isinstance(e, str)]
        return bool(runs) and all(e.exact is not None for e in runs)

    @property
    def unit(self) -> float:
        """The unit roundoff of the coarsest dtype in use."""
        return max(e.unit for e in (self._training, self._evaluation) if not isinstance(e, str))

    def original_error(self, name: str) -> float | None:
        """Return the original's error in a result or gradient, relative to its largest entry; None if it is missing.

        This is the largest error so far: that of the original, and those of the randomly rounded runs.
        """
        runs = [run for run in (self._training, self._evaluation) if not isinstance(run, str)]
        errors = [error for run in runs if (error := run.original_error(name)) is not None]
        return max(errors, default=None)

    def original_row_error(self, name: str) -> tuple[float, float] | None:
        """Return the largest average error of a row, and the largest average of a row (ExpectedRuns)."""
        runs = [run for run in (self._training, self._evaluation) if not isinstance(run, str)]
        found = [pair for run in runs if (pair := run.original_row_error(name)) is not None]
        return (max(e for e, _ in found), max(s for _, s in found)) if found else None

    def check_other_calls(self, rewritten: nn.Module) -> Verification | None:
        """Return what differs, in double, in calls derived from the example; None if nothing differs."""
        calls = list(enumerate(self._other_calls()))
        for expected in (self._training, self._evaluation):
            if not isinstance(expected, str):
                expected.release_if_large()
        verdicts = (self._compare_other_call(rewritten, place, *other) for place, other in calls)
        return next((verdict for verdict in verdicts if verdict is not None), None)

    def _compare_other_call(
        self, rewritten: nn.Module, place: int, description: str, call: ModuleCall
    ) -> Verification | None:
        original, rewritten_run = self._original_run(place, call), self._run_in_double(rewritten, call)
        if isinstance(original, type) or isinstance(rewritten_run, type):
            verb = "raises an error" if isinstance(rewritten_run, type) else "raises no error"
            difference = "" if rewritten_run is original else f"the rewritten forward {verb}, unlike the original"
            culprit = ""
        else:
            culprit = find_difference(original, rewritten_run)
            difference = f"computed in double, {culprit} differs" if culprit else ""
        if not difference:
            return None
        return Verification(False, math.inf, reason=f"On {description}, {difference}.", culprit=culprit)

    def _other_calls(self) -> Iterator[tuple[str, ModuleCall]]:
        """Yield calls derived from the example, if the original runs in double."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return  # collective operations would need the same calls on all ranks
        expected = self._evaluation if isinstance(self._training, str) else self._training
        if not isinstance(expected, str) and expected.exact is not None:
            yield from other_calls(expected.call)

    def _original_run(self, place: int, call: ModuleCall) -> ModuleRun | type[Exception]:
        """The original's result for the other call at `place`: a run in double, or the type of its exception.

        Small runs are kept for the next module that is checked.
        """
        if place in self._others:
            return self._others[place]
        original_run = self._run_in_double(self._original, call)
        if isinstance(original_run, type) or original_run.bytes <= SMALL:
            self._others[place] = original_run
        return original_run

    def _run_in_double(self, module: nn.Module, call: ModuleCall) -> ModuleRun | type[Exception]:
        expected = self._evaluation if isinstance(self._training, str) else self._training
        assert not isinstance(expected, str)
        try:
            with temporary_double_copy(module, call.copy_module) as double:
                return run(double, call, expected.training, DoubleMode(expected.dtype))
        except Exception as error:
            reraise_if_out_of_memory(error)
            return type(error)

    @cached_property
    def _training(self) -> ExpectedRuns | str:
        return self._expected_runs(True, None)

    @cached_property
    def _evaluation(self) -> ExpectedRuns | str:
        return self._expected_runs(False, None if isinstance(self._training, str) else self._training)

    def _expected_runs(self, training: bool, other: ExpectedRuns | None) -> ExpectedRuns | str:
        error_text = ""
        if training not in self._modes:
            return "it is not called in this mode"
        # The gradients of parts that were checked in evaluation, too, are compared in training only.
        forward_only = self._parts_checked and other is not None
        # A tensor that is written in place may have no gradient.
        kinds: tuple[Gradients, ...] = ("none",) if forward_only else ("every", "asked", "none")
        for gradients in kinds:
            call = replace(self._call, gradients=gradients)
            try:
                return ExpectedRuns(self._original, call, training, other)
            except Exception as error:  # the model may support one mode only, or not these inputs
                reraise_if_out_of_memory(error)
                error_text = f"{type(error).__name__}: {error}"
        return error_text


class _Check:
    """Compares a rewritten module with the original in one mode, given the check of the other mode."""

    def __init__(self, expected: ExpectedRuns, rewritten: nn.Module, other: _Check | None, parts_checked: bool) -> None:
        self._expected_runs, self._rewritten, self._parts_checked = expected, rewritten, parts_checked
        self._mode = "in training" if expected.training else "in evaluation"
        try:
            self._own = run(rewritten, expected.call, expected.training, AsWrittenMode(), masks_too=False)
        except Exception as error:
            reraise_if_out_of_memory(error)
            reason = f"The rewritten forward raises {type(error).__name__} {self._mode}: {error}"
            self.outcome = Verification(False, math.inf, reason=reason)
            return
        if other and not expected.differs_by_mode() and are_equal_runs(self._own, other._own):
            # The other mode has judged equal runs, so only dropout is left to compare.
            self._own = self._own.share_tensors(other._own)
            self.outcome = self._check_dropout() or other.outcome
        else:
            self.outcome = self._compare()

    def _compare(self) -> Verification:
        difference = find_difference_in_kind(self._expected_runs.own, self._own)
        if difference:
            culprit, what = difference
            return Verification(
                False, math.inf, reason=f"{capitalize_first(culprit)} {what} {self._mode}.", culprit=culprit
            )
        precision = self._check_precision()
        if not precision.ok:
            return precision
        return self._check_meaning() or self._check_dropout() or precision

    def _check_precision(self) -> Verification:
        """The verdict in the original's dtypes: the error may be no greater than the original's."""
        expected = self._expected_runs
        if expected.exact is None:
            return self._compare_tensors(self._own, expected.own, _UNEXPLAINED * expected.unit)
        return self._compare_tensors(self._own, expected.exact, expected.unit)

    def _check_meaning(self) -> Verification | None:
        """The verdict in double, apart from the rounding of constants; None if all is equal or cannot be compared.

        From single precision on, the precision check is at least as strict, except for gradients that it does not
        compute.
        """
        original_run, exact = self._expected_runs.own, self._expected_runs.exact
        if (
            exact is None
            or self._expected_runs.unit <= SAME_CONSTANT
            and original_run.gradients.keys() == exact.gradients.keys()
        ):
            return None
        actual = run_in_double(self._rewritten, self._expected_runs)
        if actual is None or find_difference_in_kind(exact, actual):
            return None
        outcome = self._compare_tensors(actual, exact, SAME_CONSTANT, "computed in double, ")
        return None if outcome.ok else outcome

    def _check_dropout(self) -> Verification | None:
        """The verdict on rate and scaling of dropout; None if both agree."""
        rates, own_rates = self._expected_runs.own.rates, self._own.rates
        if rates == own_rates and (self._parts_checked or not rates):
            return None
        seeds = range(SEED + DRAWS, SEED + 2 * DRAWS)
        try:
            samples = (sample_dropout(self._rewritten, self._expected_runs, s) for s in seeds)
            reason = dropout_difference(self._expected_runs.draws(), samples, self._expected_runs.unit)
        except Exception as error:
            reraise_if_out_of_memory(error)
            reason = f"With dropout, the rewritten forward raises {type(error).__name__}: {error}"
        return Verification(False, math.inf, reason=f"{reason} ({self._mode})", culprit="dropout") if reason else None

    def _compare_tensors(self, fused: ModuleRun, exact: ModuleRun, unit: float, how: str = "") -> Verification:
        """The verdict on the tensor that is closest to its bound, or on the first that exceeds it."""
        expected = self._expected_runs
        rounded = None if expected.exact is None else partial(self._spreads_of, unit)
        judgement = judge_tensors(
            _comparisons(fused, expected.own, exact), unit, share=min(1.0, unit / expected.unit), rounded=rounded
        )
        if judgement.gap.within:
            return Verification(True, judgement.gap.error, judgement.gap.bound)
        reason = f"{capitalize_first(how + judgement.sentence(f' {self._mode}'))}."
        return Verification(False, judgement.gap.error, judgement.gap.bound, reason, judgement.name)

    def _spreads_of(self, unit: float, t: TensorComparison) -> list[RoundingSpread]:
        return [spreads[t.name] for spreads in self._expected_runs.rounded(unit) if t.name in spreads]


def _comparisons(fused: ModuleRun, original_run: ModuleRun, exact: ModuleRun) -> Iterator[TensorComparison]:
    """Yield each tensor and gradient of `fused` with the original's and the exact one; a missing gradient is zero."""
    names = (*(n for n in fused.tensors if n in exact.tensors), *(f"gradient of {n}" for n in fused.gradients))
    for name in names:
        present = [t for r in (fused, original_run, exact) if (t := r.find_tensor(name)) is not None]
        if present:
            result, exact_tensor = (
                tensor_or_zeros(fused, name, present[0]),
                tensor_or_zeros(exact, name, present[0]),
            )
            original = exact_tensor if original_run.lacks(name) else tensor_or_zeros(original_run, name, exact_tensor)
            yield TensorComparison(name, result, original, exact_tensor, _count_terms(name, exact_tensor, exact))


def _count_terms(name: str, exact: Tensor, run: ModuleRun) -> int:
    """The number of terms in the sum of each entry: the number of rows for a gradient that is not computed row by row.

    A model may pool many rows into few results, so the largest tensor during the forward counts.
    """
    if not name.startswith("gradient of "):
        return 1
    entries = max((t.numel() for n, t in run.tensors.items() if n.startswith("result") and t.ndim), default=1)
    by_row = exact.numel() >= entries and not name.startswith("gradient of self.")
    return 1 if by_row else run.rows
