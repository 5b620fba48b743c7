"""Finds sequences of kernels that one kernel can replace, and what that would save.

- **Unfused attention**: a product, kernels that scale and mask the scores, a softmax, perhaps a dropout, a product. A
  fused kernel keeps the scores on the chip, so the kernels between the products are saved.
- **Chains**: two or more kernels in a row that compute element by element or reduce rows. A fused kernel reads and
  writes once, so it takes about as long as the longest of them.
- **An unfused optimizer**: it visits all parameters once for each of its operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from autofuse.profiling.trace.diagnosis.optimizer_losses import fraction_saved
from autofuse.profiling.trace.kernels import category_of
from autofuse.profiling.trace.launch_shapes import device_number, stream_number
from autofuse.profiling.trace.phases import phase_of
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.trace import Event

Kind = Literal["attention", "chain", "optimizer"]

_CHAIN_CATEGORIES = ("softmax", "norm", "activation", "random", "reduction", "elementwise")
_SCORE_CATEGORIES = ("elementwise", "random", "copy", "activation")
_MOST_BEFORE, _MOST_AFTER = (
    6,
    5,
)  # kernels between a product and the softmax, and between the softmax and the next product
_LOG = re.compile(r"log_?softmax|nll|cross_?entropy", re.IGNORECASE)
_FUSED_OPTIMIZER = re.compile(
    r"fused|DistributedFused|multi_tensor_adam|AdamFunctor|LAMBStage|FusedAdam", re.IGNORECASE
)
_LONGEST = 1.3  # time of a fused chain / its longest kernel: the fused one reads the inputs of several
_PASSES = 4  # an unfused optimizer has at least so many kernels in a step; a fused optimizer has a few


@dataclass(frozen=True)
class Fusible:
    """Kernels in a row that could be one.

    nanoseconds: their time within the steps.
    saved: the predicted saving of fusing them, nanoseconds.
    """

    kind: Kind
    kernels: tuple[Event, ...]
    nanoseconds: float
    saved: float


def sequences_of(scope: Scope) -> list[Fusible]:
    """Return all sequences that could be fused in the steps, in order of time. No kernel is in two of them."""
    found: list[Fusible] = []
    for kernels in _kernels_by_stream(scope):
        categories = [_category_in_phase(kernel, scope) for kernel in kernels]
        at = 0
        while at < len(kernels):
            end = _end_of_attention(kernels, categories, at)
            if end:
                found.append(_attention_sequence(kernels[at:end], categories[at:end], scope))
                at = end - 1  # its last product may be the first of the next attention
                categories[at] = "used"
                continue
            end = _end_of_chain(categories, at)
            if end - at >= 2:
                found.append(_chain_sequence(kernels[at:end], scope))
            at = max(end, at + 1)
    optimizer = _optimizer_sequence(scope)
    return [*found, *([optimizer] if optimizer else [])]


def _kernels_by_stream(scope: Scope) -> Iterator[list[Event]]:
    streams: dict[tuple[str, str], list[Event]] = {}
    for kernel in scope.kernels:
        if scope.begins(kernel):
            streams.setdefault((str(device_number(kernel)), str(stream_number(kernel))), []).append(kernel)
    yield from streams.values()


def _category_in_phase(kernel: Event, scope: Scope) -> str:
    if phase_of(kernel, scope) == "optimizer":
        return "optimizer"
    return category_of(kernel.name)


def _end_of_attention(kernels: Sequence[Event], categories: Sequence[str], at: int) -> int:
    """Return the end of an unfused attention whose first product is at `at`; 0 if there is none."""
    if categories[at] not in ("matmul", "used") or kernels[at].category != "kernel":
        return 0
    softmax = _skip_categories(categories, at + 1, _SCORE_CATEGORIES, _MOST_BEFORE)
    if softmax >= len(kernels) or categories[softmax] != "softmax" or _LOG.search(kernels[softmax].name):
        return 0
    last = _skip_categories(categories, softmax + 1, _SCORE_CATEGORIES, _MOST_AFTER)
    return last + 1 if last < len(kernels) and categories[last] == "matmul" else 0


def _skip_categories(categories: Sequence[str], at: int, over: Sequence[str], most: int) -> int:
    end = at
    while end < len(categories) and end - at < most and categories[end] in over:
        end += 1
    return end


def _end_of_chain(categories: Sequence[str], at: int) -> int:
    end = at
    while end < len(categories) and categories[end] in _CHAIN_CATEGORIES:
        end += 1
    return end


def _attention_sequence(kernels: Sequence[Event], categories: Sequence[str], scope: Scope) -> Fusible:
    times = [scope.nanoseconds(kernel) for kernel in kernels]
    between = sum(time for time, category in zip(times, categories, strict=True) if category not in ("matmul", "used"))
    return Fusible("attention", tuple(kernels), sum(times), between)


def _chain_sequence(kernels: Sequence[Event], scope: Scope) -> Fusible:
    times = [scope.nanoseconds(kernel) for kernel in kernels]
    return Fusible("chain", tuple(kernels), sum(times), max(0.0, sum(times) - _LONGEST * max(times)))


def _optimizer_sequence(scope: Scope) -> Fusible | None:
    optimizer_kernels = [k for k in scope.kernels if scope.begins(k) and _category_in_phase(k, scope) == "optimizer"]
    kernels = [k for k in optimizer_kernels if not _FUSED_OPTIMIZER.search(k.name)]
    if len(kernels) < _PASSES * scope.steps.count:
        return None
    total = sum(scope.nanoseconds(kernel) for kernel in kernels)
    return Fusible("optimizer", tuple(kernels), total, fraction_saved(scope) * total)
