"""A check of a large call: the whole proof on a part of it, and one look at all of it in the dtypes as written.

In double and under random rounding a part is run (slices.py). What all of it may differ by follows from what the
original errs by on the part: errors that add up grow at most as the square root of the number of entries. Where that
does not explain a difference, or a part cannot tell, the answer is None, and the whole call has to be checked at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from autofuse.verify.arithmetic import AsWritten
from autofuse.verify.differences import difference_in_kind
from autofuse.verify.modules import ModuleReference, Verification
from autofuse.verify.out_of_memory import pass_on_if_out_of_memory
from autofuse.verify.runs import SMALL, ModuleCall, ModuleRun, run
from autofuse.verify.slices import LENGTH, elements, slices

_USUAL = 1.5  # times the largest error of the original, that differences of rounding are on average: about a third is
_OF_A_ROW = 4.0  # times that, in the row of the largest differences
_LONG = 16  # entries of a row of which an average says more than its largest entry
_WORTH = 2  # times as many entries as in a part; below that the whole call is checked at once


class PartwiseReference:
    """What an original computes on parts of a call, and of the whole call in the dtypes as written."""

    def __init__(
        self, whole: ModuleReference, aside: Callable[[], AbstractContextManager[object]] = nullcontext,
        length: int = LENGTH,
    ) -> None:  # fmt: skip
        """aside: a context for the runs of a part of the call. length: of a sequence in a part, at most."""
        self._whole, self._aside, self._length = whole, aside, length
        self._known: dict[str, ModuleReference | None] = {}

    @cached_property
    def _smaller(self) -> list[tuple[str, ModuleCall]]:
        return [(words, call) for words, call in slices(self._whole.call, self._length) if self._is_worth(call)]

    @property
    def can_tell(self) -> bool:
        """Whether the call has parts that are worth it, and the original runs on the whole of it."""
        return bool(self._smaller) and self._own is not None

    def check(
        self, rewritten: nn.Module, misses: Sequence[object], *, other_inputs: bool = False, alone: bool = False
    ) -> Verification | None:
        """Whether `rewritten` may stand for the original; None where no part of the call can tell.

        misses: grows with each call that no rewritten forward stands in for. What runs for the whole call has to run
        for its part, or nothing is shown: with any miss there is no answer.
        alone: the whole call is not made; for where memory has run out.
        """
        whole = None if alone else self._compared(rewritten)
        if not alone and whole is None or misses:
            return None
        for words, call in self._smaller:
            if (part := self._part(words, call)) is None:
                continue
            with self._aside():
                outcome = part.check(rewritten)
                if misses:
                    return None
                growth = math.sqrt(max(1.0, elements(self._whole.call) / max(1, elements(call))))
                if outcome.ok and not all(d.is_near(part, growth) for d in whole or ()):
                    return None
                if outcome.ok and other_inputs:
                    outcome = part.check_other_inputs(rewritten) or outcome
            if outcome.ok:
                return replace(outcome, size=words)
            return replace(outcome, reason=f"{outcome.reason.rstrip('.')} (on {words}).")
        return None

    def _compared(self, rewritten: nn.Module) -> list[_Difference] | None:
        """What differs in a run of the whole call, in sizes: no tensor of it is held. None where one cannot be made, or
        differs in more than numbers."""
        own = self._own
        if own is None or sum(r.bytes for r in own) > SMALL:
            del self._own
        mine = None if own is None else _runs(rewritten, self._whole.call)
        if own is None or mine is None:
            return None
        pairs = list(zip(own, mine, strict=True))
        if any(difference_in_kind(a, b) is not None for a, b in pairs):
            return None
        return [d for a, b in pairs for d in _differences(a, b)]

    def _is_worth(self, part: ModuleCall) -> bool:
        return elements(part) * _WORTH <= elements(self._whole.call)

    @cached_property
    def _own(self) -> list[ModuleRun] | None:
        return _runs(self._whole.original, self._whole.call)

    def _part(self, words: str, call: ModuleCall) -> ModuleReference | None:
        """The reference on a part; None where the original does not run on it in double."""
        if words not in self._known:
            part = self._whole.on(call)
            self._known[words] = part if part.is_exact else None
        return self._known[words]


def _runs(module: nn.Module, call: ModuleCall) -> list[ModuleRun] | None:
    """In training with gradients, and in evaluation without, in the dtypes as written; None where one raises."""
    for gradients in ("every", "asked"):
        calls = (replace(call, gradients=gradients), True), (replace(call, gradients="none"), False)
        try:
            return [run(module, call, training, AsWritten(), masks_too=False) for call, training in calls]
        except Exception as error:  # what is written in place may have no gradient
            pass_on_if_out_of_memory(error)
    return None


@dataclass(frozen=True)
class _Difference:
    """How far two runs are apart in one result or gradient: in the largest entry, on average, and on average in the row
    where most. size: of the result's largest entry."""

    name: str
    off: float
    average: float
    in_a_row: float
    size: float
    entries: int
    equal: bool

    def is_near(self, part: ModuleReference, growth: float) -> bool:
        """Whether that is no more than the original errs by, and a fused forward may."""
        if not math.isfinite(self.off + self.size):
            return self.equal  # infinities and NaN are for the whole check, unless all is the same
        found = part.error_of(self.name)
        if found is None or not self.size:
            return self.off == 0.0
        if self.off > growth * (6.0 * (1.0 + 4.0 / self.entries) * found + 4.0 * part.unit) * self.size:
            return False
        # What is added up over the whole call is one sum for each entry. Other entries lie in rows: each must do.
        often = growth if self.name.startswith("gradient of self.") else 1.0
        usual = often * (_USUAL * found + part.unit) * self.size
        return self.average <= usual and (often > 1.0 or self.in_a_row <= _OF_A_ROW * usual)


def _differences(own: ModuleRun, mine: ModuleRun) -> Iterator[_Difference]:
    for name in (*own.tensors, *(f"gradient of {n}" for n in own.gradients)):
        a, b = mine.named(name), own.named(name)
        if a is None or b is None:
            alike = a is b
            yield _Difference(name, 0.0 if alike else math.inf, 0.0, 0.0, 0.0, 0, alike)
            continue
        a, b = (torch.view_as_real(t) if t.is_complex() else t for t in (a.detach(), b.detach()))
        off = a - b
        yield _Difference(
            name, _largest(off), _spread(off), _worst_row(off), _largest(b), b.numel(), bool(torch.equal(a, b))
        )


def _spread(x: Tensor) -> float:
    """The root mean square."""
    return float(torch.linalg.vector_norm(x.flatten(), dtype=torch.float64)) / math.sqrt(max(1, x.numel()))


def _worst_row(x: Tensor) -> float:
    """The largest root mean square of a row; 0.0 where rows are too short to tell."""
    if x.ndim < 2 or x.shape[-1] < _LONG:
        return 0.0
    return float(torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).max()) / math.sqrt(x.shape[-1])


def _largest(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.flatten(), math.inf)) if x.numel() else 0.0
