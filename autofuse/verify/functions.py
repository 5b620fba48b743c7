"""Does a candidate compute the same as torch's own code? Outputs and every gradient are compared in double precision.

- The exact result is that of torch's code on the same numbers in float64.
- Two errors show how exact the original dtypes are: that of torch's code in these dtypes, and that of the exact code on
  arguments that are changed by one unit roundoff.
- A candidate may have a stated multiple of either error; autofuse/verify/bounds.py gives the rule and its reasons.
- Candidates draw dropout in their own way, so they are compared without it. Then the average change by dropout must be
  as large as in torch's code.

This file treats all operations alike, and it measures no time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from autofuse.verify.bounds import Gap, rounding_spread
from autofuse.verify.calls import Function, FunctionCall, FunctionOutcome
from autofuse.verify.differences import are_equal_tensors, tensor_difference
from autofuse.verify.draws import single_run_difference
from autofuse.verify.judging import TensorComparison, capitalize_first, judge_tensors


class WrongResult(Exception):
    """A candidate computes something else than torch's code; the message is a sentence."""


class InexactResult(WrongResult):
    """Only the numbers differ; `gap` is the size of the difference."""

    def __init__(self, sentence: str, gap: Gap) -> None:
        super().__init__(sentence)
        self.gap = gap


class FunctionReference:
    """The result of one call, exactly and by torch's own code; candidates are compared with it one by one."""

    def __init__(self, torch_code: Function, call: FunctionCall) -> None:
        """Run torch's code in float64 and in the original dtypes. Raises what that code raises."""
        self.call, self._rate = call, call.dropout_rate(torch_code)
        self._undropped_call = call.without_dropout(torch_code) if self._rate else call
        self._original = self._undropped_call.outcome(torch_code)
        dtypes = [o.dtype for o in self._original.outputs]
        self._exact = self._undropped_call.in_double().outcome(torch_code, dtypes)
        self._perturbed = self._undropped_call.with_rounding_noise().outcome(torch_code, dtypes)
        self._with_dropout = call.outcome(torch_code) if self._rate else self._original
        sized = [t for t in (*call.tensors, *self._original.outputs) if t.is_floating_point() or t.is_complex()]
        self._unit = max((torch.finfo(t.dtype).eps / 2 for t in sized), default=0.0)
        self._largest_size = max((t.numel() for t in sized), default=1)

    def compare(self, run: Function) -> Gap:
        """Return the error of a candidate in the tensor that is closest to its bound.

        Raises:
            InexactResult: an error exceeds its bound.
            WrongResult: a shape, a dtype or the dropout differs, or the candidate writes into its arguments.
            Exception: whatever the candidate raises.
        """
        outcome = self._undropped_call.outcome(run)
        if not outcome.arguments_unchanged:
            raise WrongResult("It writes into its arguments.")
        if len(outcome.outputs) != len(self._original.outputs):
            raise WrongResult(f"It returns {len(outcome.outputs)} results instead of {len(self._original.outputs)}.")
        result = judge_tensors(self._tensor_comparisons(outcome), self._unit)
        if not result.gap.within:
            raise InexactResult(f"It computes something else: {result.sentence()}.", result.gap)
        if self._rate:
            self._compare_dropout(run)
        return result.gap

    def is_deterministic(self, run: Function) -> bool:
        """Whether two calls from the same random state give equal results."""
        first, second = self.call.outcome(run), self.call.outcome(run)
        return all(map(are_equal_tensors, first.tensors, second.tensors))

    def _tensor_comparisons(self, outcome: FunctionOutcome) -> Iterator[TensorComparison]:
        """Yield each output and gradient that torch's code has.

        Raises:
            WrongResult: One differs in kind.
        """
        outcomes = zip(
            outcome.tensors, self._original.tensors, self._exact.tensors, self._perturbed.tensors, strict=True
        )
        for place, (result, original, exact, perturbed) in enumerate(outcomes):
            name = outcome.name(place)
            if original is None or exact is None:
                continue
            if result is None:  # autograd's form of a gradient of zeros
                if bool(original.any()):
                    raise WrongResult(f"It does not compute {name}.")
                continue
            if difference := tensor_difference(original, result):
                raise WrongResult(f"{capitalize_first(name)} {difference}.")
            if result.is_floating_point() or result.is_complex():
                # An entry of a small result may be a sum over all entries of a large one.
                terms = max(1, self._largest_size // max(1, result.numel()))
                exact = exact.to(result.device)
                rounded = () if perturbed is None else (rounding_spread(perturbed.to(result.device), original, exact),)
                yield TensorComparison(name, result, original, exact, terms, rounded)

    def _compare_dropout(self, run: Function) -> None:
        outcome = self.call.outcome(run)
        for place, (result, original, without_dropout) in enumerate(
            zip(outcome.tensors, self._with_dropout.tensors, self._original.tensors, strict=True)
        ):
            if result is None or original is None or without_dropout is None or not result.is_floating_point():
                continue
            if difference := single_run_difference(result, original, without_dropout, self._unit):
                raise WrongResult(f"Its dropout differs: {outcome.name(place)} {difference}.")
