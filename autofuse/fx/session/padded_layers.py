"""Finds linear layers whose products are faster with padding, such as a head of 50257 classes on a GPU.

A layer is padded only if that was measured to be faster on this device, for calls like those of the model. The weight
keeps its shape: autofuse.ops.linear pads a copy of it for each product. A head whose loss autofuse computes needs none
of this, because ops.linear_cross_entropy pads by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.lazy.layer_forward import is_plain_linear
from autofuse.fx.session.lazy_heads import HEAD_RULE
from autofuse.fx.session.planner import Planner
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.kernels.operation import OPERATIONS, Operation
from autofuse.kernels.tuning import tune
from autofuse.measure.available_memory import free_bytes
from autofuse.ops.linear import MANY_ROWS
from autofuse.reasons import outcomes
from autofuse.reasons.reason import because
from autofuse.results.comparison import milliseconds
from autofuse.results.sites import SiteReport
from autofuse.results.step_times import step_mode
from autofuse.results.tuning import TuningResult

PADDED = "padded"  # the provider of ops.linear
_SECONDS = 0.15  # for each candidate
_COPIES = 8  # of the result in float64 that the check of the candidates holds


@dataclass(frozen=True)
class PaddedLayer:
    """A linear layer whose products were measured with padding.

    Attributes:
        module: the layer.
        name: its name in the model.
        results: what was measured, by mode (True is training).
    """

    module: nn.Linear
    name: str
    results: Mapping[bool, TuningResult]

    @property
    def is_faster(self) -> bool:
        """Whether padding is faster in one of the modes."""
        return any(r.winner == PADDED for r in self.results.values())

    @property
    def error(self) -> float | None:
        """The largest difference from torch's code in float64, of outputs and gradients."""
        trials = (t for r in self.results.values() for t in r.trials if t.name == PADDED)
        return max((t.error for t in trials if t.error is not None), default=None)


def find_padded_layers(
    planner: Planner, names: Mapping[nn.Module, str], lazy: Collection[nn.Module] = ()
) -> list[PaddedLayer]:
    """Measure the linear layers whose products may be faster with padding.

    Args:
        planner: knows the calls of the layers.
        names: the layers to consider, with their names.
        lazy: the layers whose output is lazy in training. They are measured in inference, where they call ops.linear.

    Returns:
        The layers that were measured. Those with `is_faster` gain.
    """
    found = []
    for module, name in names.items():
        is_lazy = module in lazy
        if (is_lazy or is_plain_linear(module)) and not any(id(p) in planner.sharded for p in module.parameters()):
            modes = (False,) if is_lazy else (False, True)
            results = dict(_measurements(module, planner, modes))  # type: ignore[arg-type]
            if results:
                found.append(PaddedLayer(module, name, results))  # type: ignore[arg-type]
    return found


def report_of_layer(layer: PaddedLayer) -> SiteReport:
    """The report of a layer: what runs, and the times by mode."""
    times = "; ".join(f"{step_mode(mode)}: {_times(result)}" for mode, result in layer.results.items())
    if layer.is_faster:
        kernel = f"torch linear, {layer.name or 'the model'} padded from {layer.module.out_features} features"
        return SiteReport(HEAD_RULE, "", "fused", times, kernel, layer.error)
    why = because(outcomes.PADDING_NOT_FASTER, head=layer.name or "the model", why=times)
    return SiteReport(HEAD_RULE, "", "declined", str(why), advice=why.advice(), reason_code=why.code.name)


def _measurements(module: nn.Linear, planner: Planner, modes: Collection[bool]) -> Iterator[tuple[bool, TuningResult]]:
    operation = OPERATIONS["linear"]
    for training, calls in planner.calls.items():
        x = _input(module, calls[module]) if module in calls and training in modes else None
        if x is None or not _has_choice(operation, x, module) or not _fits(x, module):
            continue
        with torch.no_grad():
            example = _rows_like(x).requires_grad_(training)
        yield training, tune(operation, (example, module.weight, module.bias), training=training, seconds=_SECONDS)


def _input(module: nn.Linear, call: ForwardArguments) -> Tensor | None:
    """The fake input of a call; None if the layer has parameters on another device, or would raise an error."""
    args, kwargs = call
    x: Any = args[0] if args else kwargs.get("input")
    if not isinstance(x, Tensor) or not x.is_floating_point() or not x.ndim or x.device != module.weight.device:
        return None
    return x


def _row_count(x: Tensor) -> int:
    """The rows of an example: at most as many as the operation tells apart."""
    return min(x.shape[:-1].numel(), MANY_ROWS)


def _rows_like(x: Tensor) -> Tensor:
    return torch.empty(_row_count(x), x.shape[-1], dtype=x.dtype, device=x.device).normal_()


def _has_choice(operation: Operation, x: Tensor, module: nn.Linear) -> bool:
    """Whether a provider besides torch's supports the call. Fake tensors are enough."""
    if _row_count(x) * x.shape[-1] < operation.least_for(x):
        return False
    kind = operation.kind(x, module.weight, module.bias)
    others = (p for p in operation.candidates(kind, x.dtype) if p is not operation.torch)
    return any(not p.check(x, module.weight, module.bias) for p in others)


def _fits(x: Tensor, module: nn.Linear) -> bool:
    """Whether the results in float64, with which candidates are compared, fit into memory."""
    free = free_bytes(x.device)
    return free is None or _row_count(x) * module.out_features * 8 * _COPIES < free


def _times(result: TuningResult) -> str:
    """The times in words: "3.1 ms, the original 21 ms"."""
    seconds = {t.name: t.seconds for t in result.trials if t.seconds is not None}
    own, padded = seconds.get("torch"), seconds.get(PADDED)
    if result.winner != PADDED or own is None or padded is None:
        return f"{result.winner}: {result.why}"
    return f"{milliseconds(padded)}, the original {milliseconds(own)}, for up to {MANY_ROWS} rows"
