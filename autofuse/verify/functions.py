"""Whether a candidate computes what torch's own code computes: outputs and every gradient, against double precision.

The exact result is that of torch's own code on the same numbers in float64. Torch's code on the arguments as they are
shows what their dtype is good for, and so does the exact result of arguments that are off by a unit of rounding; a
candidate may err by a stated factor of either: autofuse/verify/bounds.py has the rule and its reasons.
Candidates draw dropout in their own way, so they are compared without it; then what dropout changes has to be as large
on average as in torch's code.
Knows calls and numbers; must not know which operation is called, nor clocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from autofuse.verify.bounds import Gap, spread_of
from autofuse.verify.calls import Function, FunctionCall, FunctionOutcome
from autofuse.verify.differences import difference_of_tensors, same_bits
from autofuse.verify.draws import difference_at_once
from autofuse.verify.judging import Compared, capital, judged


class Wrong(Exception):
    """A candidate computes something else than torch's code; the message is a sentence."""


class Inexact(Wrong):
    """The numbers are off, and nothing else; `gap` says by how much."""

    def __init__(self, sentence: str, gap: Gap) -> None:
        super().__init__(sentence)
        self.gap = gap


class FunctionReference:
    """What one call should give, exactly and by torch's own code. Candidates are compared with it one by one."""

    def __init__(self, torch_code: Function, call: FunctionCall) -> None:
        """Runs torch's code twice, in float64 and as it is. Raises what it raises."""
        self.call, self._rate = call, call.dropout_rate(torch_code)
        self._plain = call.undropped(torch_code) if self._rate else call
        self._own = self._plain.outcome(torch_code)
        dtypes = [o.dtype for o in self._own.outputs]
        self._exact = self._plain.doubled().outcome(torch_code, dtypes)
        self._rough = self._plain.roughened().outcome(torch_code, dtypes)
        self._dropped = call.outcome(torch_code) if self._rate else self._own
        sized = [t for t in (*call.tensors, *self._own.outputs) if t.is_floating_point() or t.is_complex()]
        self._unit = max((torch.finfo(t.dtype).eps / 2 for t in sized), default=0.0)
        self._most = max((t.numel() for t in sized), default=1)

    def compare(self, run: Function) -> Gap:
        """The error of a candidate where it comes nearest to its bound.

        Raises Inexact where it is beyond; Wrong where results have other shapes or dtypes, where the candidate writes
        into what it is given, and where its dropout is another; and whatever the candidate raises.
        """
        found = self._plain.outcome(run)
        if not found.untouched:
            raise Wrong("It writes into what it is given.")
        if len(found.outputs) != len(self._own.outputs):
            raise Wrong(f"It gives {len(found.outputs)} results instead of {len(self._own.outputs)}.")
        result = judged(self._compared(found), self._unit)
        if not result.gap.within:
            raise Inexact(f"It computes something else: {result.sentence()}.", result.gap)
        if self._rate:
            self._compare_dropout(run)
        return result.gap

    def repeats(self, run: Function) -> bool:
        """Whether two calls from the same random state give equal bits."""
        first, second = self.call.outcome(run), self.call.outcome(run)
        return all(map(same_bits, first.all, second.all))

    def _compared(self, found: FunctionOutcome) -> Iterator[Compared]:
        """Each output and gradient that torch's code has, of the same form. Raises Wrong where that differs."""
        outcomes = zip(found.all, self._own.all, self._exact.all, self._rough.all, strict=True)
        for place, (got, usual, exact, rough) in enumerate(outcomes):
            name = found.name(place)
            if usual is None or exact is None:
                continue
            if got is None:
                if bool(usual.any()):
                    raise Wrong(f"It does not compute {name}.")
                continue
            if what := difference_of_tensors(usual, got):
                raise Wrong(f"{capital(name)} {what}.")
            if got.is_floating_point() or got.is_complex():
                terms = max(1, self._most // max(1, got.numel()))
                exact = exact.to(got.device)
                rounded = () if rough is None else (spread_of(rough.to(got.device), usual, exact),)
                yield Compared(name, got, usual, exact, terms, rounded)

    def _compare_dropout(self, run: Function) -> None:
        found = self.call.outcome(run)
        for place, (got, usual, plain) in enumerate(zip(found.all, self._dropped.all, self._own.all, strict=True)):
            if got is None or usual is None or plain is None or not got.is_floating_point():
                continue
            if what := difference_at_once(got, usual, plain, self._unit):
                raise Wrong(f"Its dropout is another: {found.name(place)} {what}.")
