"""Runs a program and its rewritten version on the same operands in several dtypes, and compares all visible results."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.source.rewriting import module_of

Outcome = tuple[str, list[Tensor], list[str]]  # the error, if any; outputs and gradients; warnings
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 4e-3}


def outcome(text: str, run: Callable[[dict[str, object]], Tensor], autocast: bool = False) -> Outcome:
    """The outcome of `run`, which gets the names of the program `text`."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        context = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext()
        try:
            with context:
                out = run(vars(module_of(text)))
        except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError) as error:
            return type(error).__name__, [], []
    if not out.is_floating_point():
        return "", [out], [str(w.message) for w in told]
    leaf = out.requires_grad
    if leaf:
        (out * torch.linspace(0.1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return "", [out.detach()], [str(w.message) for w in told]


def difference(before: Outcome, after: Outcome, computed_in: torch.dtype | None = None) -> str:
    """The first difference of two outcomes, "" if there is none: errors, new warnings, dtypes, shapes, numbers."""
    if before[0]:
        return ""  # nobody has a program that raises an error for these dtypes
    if after[0]:
        return f"raises {after[0]}"
    if new := set(after[2]) - set(before[2]):
        return f"warns {new}"
    for a, b in zip(before[1], after[1], strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{a.dtype} {tuple(a.shape)} became {b.dtype} {tuple(b.shape)}"
        wide = (a.double(), b.double())
        allowed = TOLERANCE[computed_in or a.dtype] if a.is_floating_point() else 0.0
        if not torch.allclose(*wide, atol=allowed * max(1.0, wide[0].abs().max().item()), rtol=0, equal_nan=True):
            return f"differs by {(wide[0] - wide[1]).abs().max().item():.3g}"
    return ""


def narrowest(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    return max(dtypes, key=lambda d: torch.finfo(d).eps)
