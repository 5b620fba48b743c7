"""A check of a large call: the full check on a part of it, and one comparison of the whole call in its own dtypes.

The part runs in double and with random rounding (slices.py). The original's error on the part gives a bound for the
whole call, because errors in a sum grow at most with the square root of the number of entries. If the bound does not
explain a difference, or no part can decide, the result is None; then the whole call needs the full check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from autofuse.verify.arithmetic import AsWrittenMode
from autofuse.verify.bounds import row_averages
from autofuse.verify.differences import find_difference_in_kind
from autofuse.verify.modules import ModuleReference, Verification
from autofuse.verify.out_of_memory import reraise_if_out_of_memory
from autofuse.verify.runs import SMALL, ModuleCall, ModuleRun, run
from autofuse.verify.slices import LENGTH, count_elements, smaller_calls

_USUAL = 1.5  # bound of the average difference, relative to the original's largest error; about 1/3 is usual
# Bound of the average difference in a row, relative to the largest average error of a row of the part. Two results that
# round in different places differ by at most the sum of their errors: 2. The largest of a million rows of 16 entries is
# 1.3 times the largest of a hundred. The rest is a margin; 0.8 to 1.6 is usual.
_OF_A_ROW = 6.0
_MIN_RATIO = 2  # a part is checked only if the whole call has at least this many times its entries


class PartwiseReference:
    """The runs of an original on parts of a call, and on the whole call in its own dtypes."""

    def __init__(
        self, whole: ModuleReference, part_context: Callable[[], AbstractContextManager[object]] = nullcontext,
        length: int = LENGTH,
    ) -> None:  # fmt: skip
        """Take the reference of the whole call.

        Args:
            whole: the reference of the whole call.
            part_context: a context for the runs of a part.
            length: the maximum sequence length of a part.
        """
        self._whole_reference, self._part_context, self._length = whole, part_context, length
        self._references: dict[str, ModuleReference | None] = {}

    @cached_property
    def _parts(self) -> list[tuple[str, ModuleCall]]:
        return [
            (words, call)
            for words, call in smaller_calls(self._whole_reference.call, self._length)
            if self._is_small_enough(call)
        ]

    @property
    def can_decide(self) -> bool:
        """Whether the call has parts that are much smaller, and the original runs on the whole call."""
        return bool(self._parts) and self._original_runs is not None

    def check(
        self, rewritten: nn.Module, misses: Sequence[object], *, other_inputs: bool = False, part_only: bool = False
    ) -> Verification | None:
        """Check whether `rewritten` may replace the original; return None if no part of the call can decide.

        Args:
            rewritten: the rewritten module.
            misses: grows with each call for which no rewritten forward runs. A part must run the same code as the whole
                call, so a miss makes the result None.
            other_inputs: also compare calls that differ from the example.
            part_only: do not make the whole call, because memory ran out.
        """
        whole = None if part_only else self._find_differences(rewritten)
        if not part_only and whole is None or misses:
            return None
        for words, call in self._parts:
            if (part := self._reference_on(words, call)) is None:
                continue
            with self._part_context():
                outcome = part.check(rewritten)
                if misses:
                    return None
                # Errors in a sum grow at most with the square root of the number of entries.
                growth = math.sqrt(max(1.0, count_elements(self._whole_reference.call) / max(1, count_elements(call))))
                if outcome.ok and not all(difference.is_near(part, growth) for difference in whole or ()):
                    return None
                if outcome.ok and other_inputs:
                    outcome = part.check_other_calls(rewritten) or outcome
            if outcome.ok:
                return replace(outcome, size=words)
            return replace(outcome, reason=f"{outcome.reason.rstrip('.')} (on {words}).")
        return None

    def _find_differences(self, rewritten: nn.Module) -> list[_Difference] | None:
        """The sizes of the differences in a run of the whole call; its tensors are not kept.

        None if the call cannot be made or differs in kind.
        """
        original_runs = self._original_runs
        if original_runs is None or sum(r.bytes for r in original_runs) > SMALL:
            del self._original_runs
        rewritten_runs = None if original_runs is None else self._runs_of(rewritten)
        if original_runs is None or rewritten_runs is None:
            return None
        pairs = list(zip(original_runs, rewritten_runs, strict=True))
        if any(find_difference_in_kind(a, b) is not None for a, b in pairs):
            return None
        return [difference for a, b in pairs for difference in _differences(a, b)]

    def _is_small_enough(self, part: ModuleCall) -> bool:
        return count_elements(part) * _MIN_RATIO <= count_elements(self._whole_reference.call)

    @cached_property
    def _original_runs(self) -> list[ModuleRun] | None:
        return self._runs_of(self._whole_reference.original)

    def _runs_of(self, module: nn.Module) -> list[ModuleRun] | None:
        """The runs of the whole call. Evaluation is left to a part if all parts of a training module were checked."""
        whole = self._whole_reference
        evaluates = not (whole.parts_checked and whole.original.training)
        return _run_modes(module, whole.call, [m for m in (True, False) if m in whole.modes and (m or evaluates)])

    def _reference_on(self, words: str, call: ModuleCall) -> ModuleReference | None:
        """The reference on a part; None if the original does not run on it in double."""
        if words not in self._references:
            part = self._whole_reference.on(call)
            self._references[words] = part if part.is_exact else None
        return self._references[words]


def _run_modes(module: nn.Module, call: ModuleCall, modes: Sequence[bool]) -> list[ModuleRun] | None:
    """The runs in training with gradients and in evaluation without; None if one raises an error."""
    for gradients in ("every", "asked"):
        calls = {True: replace(call, gradients=gradients), False: replace(call, gradients="none")}
        try:
            return [run(module, calls[training], training, AsWrittenMode(), masks_too=False) for training in modes]
        except Exception as error:  # a tensor that is written in place may have no gradient
            reraise_if_out_of_memory(error)
    return None


@dataclass(frozen=True)
class _Difference:
    """The difference of two runs in one result or gradient.

    Attributes:
        name: the name of the result or gradient.
        largest: the largest difference of an entry.
        average: the root mean square of the differences.
        rows: the root mean square of the differences in each row; None if there are no long rows.
        row_sizes: the root mean square of each row of the original.
        size: the largest entry of the original.
        entries: the number of entries.
        equal: whether all entries are equal.
    """

    name: str
    largest: float
    average: float
    rows: Tensor | None
    row_sizes: Tensor | None
    size: float
    entries: int
    equal: bool

    def is_near(self, part: ModuleReference, growth: float) -> bool:
        """Whether the original's error on the part explains the difference.

        Args:
            part: the reference on the part.
            growth: the growth of errors from the part to the whole call.
        """
        if not math.isfinite(self.largest + self.size):
            return self.equal  # infinities and NaN need the full check, unless all entries are equal
        error = part.original_error(self.name)
        if error is None or not self.size:
            return self.largest == 0.0
        if self.largest > growth * (6.0 * (1.0 + 4.0 / self.entries) * error + 4.0 * part.unit) * self.size:
            return False
        # Each entry of a parameter's gradient is a sum over the whole call. In other tensors, each row must be near.
        sum_growth = growth if self.name.startswith("gradient of self.") else 1.0
        near = self.average <= sum_growth * (_USUAL * error + part.unit) * self.size
        return near and (sum_growth > 1.0 or self._has_near_rows(part))

    def _has_near_rows(self, part: ModuleReference) -> bool:
        """Whether the original's error in a row of the part explains the difference in each row.

        Errors grow with the numbers, so the bound is larger for rows that are larger than those of the part.
        """
        known = part.original_row_error(self.name)
        if known is None or self.rows is None or self.row_sizes is None:
            return True
        error, largest_row = known
        growth = (self.row_sizes / (largest_row * self.size or 1.0)).clamp(min=1.0)
        return bool((self.rows <= (_OF_A_ROW * error + part.unit) * self.size * growth).all())


def _differences(original_run: ModuleRun, rewritten_run: ModuleRun) -> Iterator[_Difference]:
    for name in (*original_run.tensors, *(f"gradient of {n}" for n in original_run.gradients)):
        a, b = rewritten_run.find_tensor(name), original_run.find_tensor(name)
        if a is None or b is None:
            both_missing = a is b
            yield _Difference(name, 0.0 if both_missing else math.inf, 0.0, None, None, 0.0, 0, both_missing)
            continue
        a, b = (torch.view_as_real(t).flatten(-2) if t.is_complex() else t for t in (a.detach(), b.detach()))
        differences = a - b
        yield _Difference(
            name,
            _largest_entry(differences),
            _root_mean_square(differences),
            row_averages(differences),
            row_averages(b),
            _largest_entry(b),
            b.numel(),
            bool(torch.equal(a, b)),
        )


def _root_mean_square(x: Tensor) -> float:
    """The root mean square."""
    return float(torch.linalg.vector_norm(x.flatten(), dtype=torch.float64)) / math.sqrt(max(1, x.numel()))


def _largest_entry(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.flatten(), math.inf)) if x.numel() else 0.0
