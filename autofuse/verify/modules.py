"""Verification: does a rewritten module compute what the original computes, forward and backward?

Two questions are asked of every result and every gradient, in training (with dropout off) and in evaluation:
meaning, whether both agree when all is computed in double; and precision, whether in its own dtype the rewritten module
errs by no more than the original does (autofuse.verify.bounds derives how much more is no more). Where there is
dropout, its rate and scaling are compared too (autofuse.verify.draws). Must not know what was rewritten.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.verify.arithmetic import AsWritten, InDouble
from autofuse.verify.bounds import RoundingSpread
from autofuse.verify.differences import difference_in_kind, equal
from autofuse.verify.draws import DRAWS, difference
from autofuse.verify.expected import SAME_CONSTANT, Expected, drawn_by, run_in_double, tensor_of
from autofuse.verify.judging import Compared, capital, judged
from autofuse.verify.other_calls import difference as difference_on_other_inputs
from autofuse.verify.other_calls import other_calls
from autofuse.verify.out_of_memory import pass_on_if_out_of_memory
from autofuse.verify.runs import SEED, SMALL, ModuleCall, ModuleRun, doubled, run

_UNEXPLAINED = 32.0  # units of error that are put down to rounding where the original does not run in double


@dataclass(frozen=True)
class Verification:
    """The verdict. `max_error` and `bound` belong to the result or gradient that came nearest to its bound.

    Both are relative to the largest entry of that tensor. `culprit` names it, or what else differs: "result[0]",
    "gradient of x", "gradient of self.proj.weight". `reason` is a sentence, and empty where `ok`.
    """

    ok: bool
    max_error: float = 0.0
    bound: float = 0.0
    reason: str = ""
    culprit: str = ""
    size: str = ""  # on which part of the call this was asked, "" for all of it


def verify(
    original: nn.Module,
    rewritten: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    unread: frozenset[int] = frozenset(),
    copy_object: Callable[[Any], Any] = copy.deepcopy,
) -> Verification:
    """Whether `rewritten` may stand for `original`, judged by a call with `args` and `kwargs`.

    The two are modules with equal parameters. Both are run in both modes, with gradients, and are left as they were:
    parameters, buffers, attributes, gradients, modes, and the random number generators. `unread` are the elements of a
    returned tuple that no caller reads; they are not compared. `copy_object` copies arguments that are neither tensors
    nor containers, such as a key-value cache.
    """
    return ModuleReference(original, args, kwargs, unread=unread, copy_object=copy_object).check(rewritten)


class ModuleReference:
    """What an original computes, to check any number of rewritten modules against: its own runs are made once."""

    def __init__(
        self,
        original: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None = None,
        *,
        unread: frozenset[int] = frozenset(),
        copy_object: Callable[[Any], Any] = copy.deepcopy,
        copy_module: Callable[[nn.Module], nn.Module] = copy.deepcopy,
    ) -> None:
        """`copy_module` copies the modules themselves, to run them in double, with the forwards that they have."""
        self._original = original
        self._call = ModuleCall(tuple(args), dict(kwargs or {}), unread, copy_object, copy_module=copy_module)
        self._others: dict[int, ModuleRun | type[Exception]] = {}

    def check(self, rewritten: nn.Module, *, other_inputs: bool = False) -> Verification:
        """Whether `rewritten` may stand for the original. What it raises is a reason, and is not raised.

        other_inputs: ask the same, in double, of calls that the example did not make (other_calls.py).
        """
        outcome = self._outcome(rewritten)
        return (self.check_other_inputs(rewritten) if outcome.ok and other_inputs else None) or outcome

    def _outcome(self, rewritten: nn.Module) -> Verification:
        """On the call itself."""
        checks: list[_Check] = []
        for expected in (self._in_training, self._in_evaluation):
            if isinstance(expected, str):
                continue
            checks.append(_Check(expected, rewritten, checks[0] if checks else None))
            if not checks[-1].outcome.ok:
                return checks[-1].outcome
        if not checks:
            return Verification(
                False, reason=f"The original does not run on the example inputs: {self._in_evaluation}."
            )
        return max((c.outcome for c in checks), key=lambda o: o.max_error / o.bound if o.bound else 0.0)

    @property
    def original(self) -> nn.Module:
        """The module that is rewritten."""
        return self._original

    @property
    def call(self) -> ModuleCall:
        """The call by which it is judged."""
        return self._call

    def on(self, call: ModuleCall) -> ModuleReference:
        """The same original, judged by another call."""
        return ModuleReference(self._original, call.args, call.kwargs, unread=call.unread, copy_object=call.copy_object,
                               copy_module=call.copy_module)  # fmt: skip

    @property
    def is_exact(self) -> bool:
        """Whether the original runs on this call in each mode that it has, and in double."""
        runs = [e for e in (self._in_training, self._in_evaluation) if not isinstance(e, str)]
        return bool(runs) and all(e.exact is not None for e in runs)

    @property
    def unit(self) -> float:
        """The unit of rounding of the coarsest dtype on the way."""
        return max(e.unit for e in (self._in_training, self._in_evaluation) if not isinstance(e, str))

    def error_of(self, name: str) -> float | None:
        """What the original errs by in a result or gradient, of its largest entry; None where there is none.

        The largest of what was found so far: its own error, and that of the runs that were rounded at random.
        """
        modes = [e for e in (self._in_training, self._in_evaluation) if not isinstance(e, str)]
        errors = [error for e in modes if (error := e.error_of(name)) is not None]
        return max(errors, default=None)

    def check_other_inputs(self, rewritten: nn.Module) -> Verification | None:
        """What differs, in double, on calls that the example leads to; None where nothing does."""
        calls = list(enumerate(self._other_calls()))
        for expected in (self._in_training, self._in_evaluation):
            if not isinstance(expected, str):
                expected.forget_if_large()
        compared = (self._on_other(rewritten, place, *other) for place, other in calls)
        return next((found for found in compared if found is not None), None)

    def _on_other(self, rewritten: nn.Module, place: int, what: str, call: ModuleCall) -> Verification | None:
        wanted, found = self._wanted(place, call), self._other(rewritten, call)
        if isinstance(wanted, type) or isinstance(found, type):
            told = "raises" if isinstance(found, type) else "does not raise"
            why = "" if found is wanted else f"the rewritten forward {told} where the original does otherwise"
            culprit = ""
        else:
            culprit = difference_on_other_inputs(wanted, found)
            why = f"computed in double, {culprit} is another" if culprit else ""
        if not why:
            return None
        return Verification(False, math.inf, reason=f"On {what}, {why}.", culprit=culprit)

    def _other_calls(self) -> Iterator[tuple[str, ModuleCall]]:
        """Calls that the example leads to, where the original runs in double."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return  # all ranks would have to make the same calls
        known = self._in_evaluation if isinstance(self._in_training, str) else self._in_training
        if not isinstance(known, str) and known.exact is not None:
            yield from other_calls(known.call)

    def _wanted(self, place: int, call: ModuleCall) -> ModuleRun | type[Exception]:
        """What the original makes of the other call at `place`: a run in double, or what it raises. Small ones are kept
        for the next module that is checked."""
        if place in self._others:
            return self._others[place]
        wanted = self._other(self._original, call)
        if isinstance(wanted, type) or wanted.bytes <= SMALL:
            self._others[place] = wanted
        return wanted

    def _other(self, module: nn.Module, call: ModuleCall) -> ModuleRun | type[Exception]:
        known = self._in_evaluation if isinstance(self._in_training, str) else self._in_training
        assert not isinstance(known, str)
        try:
            with doubled(module, call.copy_module) as double:
                return run(double, call, known.training, InDouble(known.dtype))
        except Exception as error:
            pass_on_if_out_of_memory(error)
            return type(error)

    @cached_property
    def _in_training(self) -> Expected | str:
        return self._expected(True, None)

    @cached_property
    def _in_evaluation(self) -> Expected | str:
        return self._expected(False, None if isinstance(self._in_training, str) else self._in_training)

    def _expected(self, training: bool, other: Expected | None) -> Expected | str:
        why = ""
        for gradients in ("every", "asked", "none"):  # what is written in place may have none
            call = replace(self._call, gradients=gradients)
            try:
                return Expected(self._original, call, training, other)
            except Exception as error:  # a model of one mode only, or not for these inputs
                pass_on_if_out_of_memory(error)
                why = f"{type(error).__name__}: {error}"
        return why


class _Check:
    """A rewritten module against what is expected in one mode, given the same in the other."""

    def __init__(self, expected: Expected, rewritten: nn.Module, other: _Check | None) -> None:
        self._expected, self._rewritten = expected, rewritten
        self._mode = "in training" if expected.training else "in evaluation"
        try:
            self._own = run(rewritten, expected.call, expected.training, AsWritten(), masks_too=False)
        except Exception as error:
            pass_on_if_out_of_memory(error)
            reason = f"The rewritten forward raises {type(error).__name__} {self._mode}: {error}"
            self.outcome = Verification(False, math.inf, reason=reason)
            return
        if other and not expected.depends_on_mode() and equal(self._own, other._own):
            self._own = self._own.held_with(other._own)
            self.outcome = self._dropout() or other.outcome
        else:
            self.outcome = self._judged()

    def _judged(self) -> Verification:
        difference = difference_in_kind(self._expected.own, self._own)
        if difference:
            culprit, what = difference
            return Verification(False, math.inf, reason=f"{capital(culprit)} {what} {self._mode}.", culprit=culprit)
        precision = self._precision()
        if not precision.ok:
            return precision
        return self._meaning() or self._dropout() or precision

    def _precision(self) -> Verification:
        """In the original's dtypes, no more error than it has."""
        expected = self._expected
        if expected.exact is None:
            return self._compared(self._own, expected.own, _UNEXPLAINED * expected.unit)
        return self._compared(self._own, expected.exact, expected.unit)

    def _meaning(self) -> Verification | None:
        """In double, the same but for the rounding of constants. None where that is so, or cannot be asked.

        From single precision on, precision leaves no more room than this, except for gradients that were not asked for.
        """
        own, exact = self._expected.own, self._expected.exact
        if exact is None or self._expected.unit <= SAME_CONSTANT and own.gradients.keys() == exact.gradients.keys():
            return None
        actual = run_in_double(self._rewritten, self._expected)
        if actual is None or difference_in_kind(exact, actual):
            return None
        outcome = self._compared(actual, exact, SAME_CONSTANT, "computed in double, ")
        return None if outcome.ok else outcome

    def _dropout(self) -> Verification | None:
        """Drops out at the same rate, with the same scaling. None where that is so."""
        if not self._expected.own.rates and not self._own.rates:
            return None
        seeds = range(SEED + DRAWS, SEED + 2 * DRAWS)
        try:
            drawn = (drawn_by(self._rewritten, self._expected, s) for s in seeds)
            reason = difference(self._expected.draws(), drawn, self._expected.unit)
        except Exception as error:
            pass_on_if_out_of_memory(error)
            reason = f"With dropout, the rewritten forward raises {type(error).__name__}: {error}"
        return Verification(False, math.inf, reason=f"{reason} ({self._mode})", culprit="dropout") if reason else None

    def _compared(self, fused: ModuleRun, exact: ModuleRun, unit: float, how: str = "") -> Verification:
        """The tensor that comes nearest to its bound, or the first that is beyond it."""
        expected = self._expected
        rounded = None if expected.exact is None else partial(self._rounded, unit)
        found = judged(
            _compared(fused, expected.own, exact), unit, share=min(1.0, unit / expected.unit), rounded=rounded
        )
        if found.gap.within:
            return Verification(True, found.gap.error, found.gap.bound)
        reason = f"{capital(how + found.sentence(f' {self._mode}'))}."
        return Verification(False, found.gap.error, found.gap.bound, reason, found.name)

    def _rounded(self, unit: float, t: Compared) -> list[RoundingSpread]:
        return [spreads[t.name] for spreads in self._expected.rounded(unit) if t.name in spreads]


def _compared(fused: ModuleRun, own: ModuleRun, exact: ModuleRun) -> Iterator[Compared]:
    """Each tensor and gradient of `fused` three times. No gradient is a gradient of zero."""
    names = (*(n for n in fused.tensors if n in exact.tensors), *(f"gradient of {n}" for n in fused.gradients))
    for name in names:
        found = [t for r in (fused, own, exact) if (t := r.named(name)) is not None]
        if found:
            result, truth = tensor_of(fused, name, found[0]), tensor_of(exact, name, found[0])
            original = truth if own.lacks(name) else tensor_of(own, name, truth)
            yield Compared(name, result, original, truth, _terms(name, truth, exact))


def _terms(name: str, exact: Tensor, run: ModuleRun) -> int:
    """Of how many terms an entry is the sum: as many as there are rows, for a gradient that is not row by row.

    What a model returns may have few rows, pooled from many: those of the largest tensor on the way count.
    """
    if not name.startswith("gradient of "):
        return 1
    entries = max((t.numel() for n, t in run.tensors.items() if n.startswith("result") and t.ndim), default=1)
    by_row = exact.numel() >= entries and not name.startswith("gradient of self.")
    return 1 if by_row else run.rows
