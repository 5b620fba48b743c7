"""Whether a candidate computes what torch's own code computes: outputs and every gradient, against double precision.

The exact result is that of torch's own code on the same numbers in float64. Torch's code on the arguments as they are
shows what their dtype is good for, and so does the exact result of arguments that are off by a unit of rounding; a
candidate may err by a stated factor of either: autofuse/verify/bounds.py has the rule and its reasons.
Candidates draw dropout in their own way, so they are compared without it; then what dropout changes has to be as large
on average as in torch's code.
Knows calls and numbers; must not know which operation is called, nor clocks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autofuse.verify.bounds import Gap, gap
from autofuse.verify.calls import Function, FunctionCall, FunctionOutcome, same_bits

_SAME_CHANGE, _SAME_SHARE = 0.1, 0.02  # what two dropouts may differ by beyond chance, for numbers are finite
_NOTHING = 1e-3  # a change that is no more than rounding, as that of a gradient which dropout does not reach


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
        worst = Gap()
        for place in range(len(self._own.all)):
            worst = max(worst, self._compared(found, place), key=lambda g: g.ratio)
        if self._rate:
            self._compare_dropout(run)
        return worst

    def repeats(self, run: Function) -> bool:
        """Whether two calls from the same random state give equal bits."""
        first, second = self.call.outcome(run), self.call.outcome(run)
        return all(map(same_bits, first.all, second.all))

    def _compared(self, found: FunctionOutcome, place: int) -> Gap:
        name, got, usual, exact = found.name(place), found.all[place], self._own.all[place], self._exact.all[place]
        if usual is None or exact is None:
            return Gap()
        if got is None:
            if bool(usual.any()):
                raise Wrong(f"It does not compute {name}.")
            return Gap()
        if got.shape != usual.shape or got.dtype != usual.dtype:
            raise Wrong(f"It gives {name} as {_form(got)} instead of {_form(usual)}.")
        here = self._gap(got, usual, exact.to(got.device), self._rough.all[place])
        if not here.within:
            raise Inexact(
                f"It computes something else: {name} is off by {here.error:.1e} of its largest entry, where rounding "
                f"explains {here.bound:.1e}.",
                here,
            )
        return here

    def _gap(self, got: Tensor, usual: Tensor, exact: Tensor, rough: Tensor | None) -> Gap:
        if not got.is_floating_point() and not got.is_complex():
            return Gap() if torch.equal(got, usual) else Gap(math.inf)
        rounded = () if rough is None else (rough.to(got.device),)
        return gap(got, usual, exact, self._unit, rounded, terms=max(1, self._most // max(1, got.numel())))

    def _compare_dropout(self, run: Function) -> None:
        """What a wrong rate, a missing 1 / (1 - p) or no dropout at all looks like: the result without dropout shows in
        it by another factor, or what dropout changes is of another size."""
        found = self.call.outcome(run)
        for place, (got, usual, plain) in enumerate(zip(found.all, self._dropped.all, self._own.all, strict=True)):
            if got is None or usual is None or plain is None or not got.is_floating_point():
                continue
            got, usual, plain = (t.double() for t in (got, usual, plain))
            size = _size(plain) or 1.0
            change, own = _size(got - plain) / size, _size(usual - plain) / size
            share, own_share = (float((t * plain).mean()) / size**2 for t in (got, usual))
            # Entries of a row may go by the same draws, so only rows count as independent of each other.
            chance = 5 / math.sqrt(max(1, plain.numel() // plain.shape[-1] if plain.ndim else 1))
            nothing = max(_NOTHING, 16 * self._unit)
            if (
                abs(change - own) > (_SAME_CHANGE + chance) * own + nothing
                or abs(share - own_share) > _SAME_SHARE + chance * own + nothing
            ):
                raise Wrong(
                    f"Its dropout is another: {found.name(place)} changes by {change:.2g} of itself where torch's "
                    f"does by {own:.2g}, around {share:.2g} of what it is without it where torch's is around "
                    f"{own_share:.2g}."
                )


def _form(t: Tensor) -> str:
    return f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}"


def _size(t: Tensor) -> float:
    return float(torch.linalg.vector_norm(t)) / math.sqrt(max(1, t.numel()))
