"""Estimates the memory of one training step from a run on fake tensors, for one setting, before and after fusion.

This file knows how a setting changes a model and a step. profiling/live/memory.py knows what memory is for. An
estimate lacks the workspaces of kernels, which do not pass the dispatcher: see ERROR_BASIS.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autofuse.fx.session.optimize import optimize_on_paper, report
from autofuse.measure.step import Step, call_model, clear_gradients
from autofuse.profiling.live.memory import PeakHoldings
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.plan.paper import Paper, Unplannable
from autofuse.profiling.plan.sharding import KINDS, STATES, Spread, blocks, spread
from autofuse.results.plan import Setting
from autofuse.results.profile import Memory
from autofuse.torch_private import on_demand
from autofuse.torch_private.nested import tensors_in

# The largest relative errors of 64 estimates. 30 of 32 before fusion and 23 of 32 after it were within 1 %. The others
# lacked a kernel's workspace: with checkpointing the peak can be inside of a kernel.
ERROR, ERROR_FUSED = 0.03, 0.18
ERROR_BASIS = (
    "against real steps on a CPU, 10 to 390 MB: GPT, BERT, Llama and ViT, in float32 and bfloat16, with and "
    "without checkpointing"
)
SOURCE = "a step run on fake tensors, without workspaces of kernels"
_LOG = logging.getLogger("autofuse")
_OPTIMIZERS: Mapping[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adagrad": torch.optim.Adagrad,
}
OPTIMIZERS = ("none", *_OPTIMIZERS)


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of one device.

    Attributes:
        memory: at the peak of the step.
        layers: bytes at the peak by module, of the whole model.
        fused: number of fused places.
        states_bytes: the largest total of parameters, gradients and the optimizer's state.
        host_bytes: what is offloaded to the host's memory.
    """

    memory: Memory
    layers: Mapping[str, int]
    fused: int
    states_bytes: int = 0
    host_bytes: int = 0


class PlannedModel:
    """A model before or after fusion, and the memory of its step with inputs of any batch.

    `estimate` raises Unplannable if the step cannot run on paper.
    """

    def __init__(self, paper: Paper, model: nn.Module, step: Step | None, setting: Setting, fusing: bool) -> None:
        """`model` is on paper already. It does not change."""
        self.paper, self.base, self.step, self.setting, self.fusing = paper, model, step, setting, fusing
        self._prepared: tuple[nn.Module, Optimizer | None, Spread, int] | None = None

    @property
    def error(self) -> float:
        """The largest relative error of such estimates that was measured."""
        return ERROR_FUSED if self.fusing else ERROR

    def estimate(self, inputs: Any) -> MemoryEstimate:
        """The memory of one step with these inputs, which are on paper."""
        with self.paper.in_use(), _without_log():
            model, optimizer, spread_, fused = self._prepared or self._prepare(inputs)
            before = _fallbacks(model)
            holding = self._measure_holdings(model, optimizer, inputs)
            if (
                self.fusing and _fallbacks(model) != before
            ):  # the fused code was made for other sizes, and the original ran
                model, optimizer, spread_, fused = self._prepare(inputs)
                holding = self._measure_holdings(model, optimizer, inputs)
        return _estimate_of_holding(holding, spread_, fused)

    def _prepare(self, inputs: Any) -> tuple[nn.Module, Optimizer | None, Spread, int]:
        model = self.paper.model(self.base)
        fused = 0
        if self.fusing:
            example = (inputs,) if isinstance(inputs, Tensor) else inputs
            with _autocast(
                self.setting.autocast, cached=False
            ):  # guards are valid for the state in which they are created
                optimize_on_paper(model, example)
            fused = len(report(model).with_status("fused"))
        divided = spread(model, self.setting)
        apply_checkpointing(model, self.setting.checkpointing)
        self._prepared = model, _optimizer(model, self.setting.optimizer), divided, fused
        return self._prepared

    def _measure_holdings(self, model: nn.Module, optimizer: Optimizer | None, inputs: Any) -> PeakHoldings:
        with PeakHoldings(
            ModuleNames({"": model}), () if optimizer is None else (optimizer,), inputs=inputs
        ) as holding:
            if self.step is None:
                _step(model, inputs, self.setting.autocast)
            else:  # the step runs the backward too: without a cache, casts of weights live as long as the graph
                with _autocast(self.setting.autocast, cached=False):
                    self.step(model, inputs)
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
            clear_gradients((model,), inputs)
        return holding


def apply_checkpointing(model: nn.Module, what: str) -> None:
    """Makes modules compute their forward again in the backward, in place.

    Args:
        model: any module.
        what: "none"; "block" for every repeated block of the model; else patterns of names, "layers.*,encoder".

    Raises:
        Unplannable: no module fits `what`.
    """
    if what == "none":
        return
    patterns = what.split(",")
    chosen = set(blocks(model) if what == "block" else _modules_like(model, patterns))
    if not chosen:
        raise Unplannable(
            "The model has no list of equal blocks to checkpoint: name modules, as in --checkpointing 'layers.*'."
            if what == "block"
            else f"No module of the model is called {what!r}: `model.named_modules()` lists the names."
        )
    on_demand.apply_activation_checkpointing(model, check_fn=lambda module: module in chosen)


def _modules_like(model: nn.Module, patterns: Iterable[str]) -> list[nn.Module]:
    return [m for name, m in model.named_modules() if name and any(fnmatchcase(name, p.strip()) for p in patterns)]


def _optimizer(model: nn.Module, name: str) -> Optimizer | None:
    """The optimizer with its state, which exists from the second step on."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if name == "none" or not parameters:
        return None
    optimizer = _OPTIMIZERS[name](parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _step(model: nn.Module, inputs: Any, autocast: str) -> None:
    """Runs the forward, the sum of the outputs' mean squares as `compare` does, and the backward.

    The backward runs outside of autocast, as torch recommends, so casts of weights are freed with the graph.
    """
    with _autocast(autocast):
        outputs = tensors_in(call_model(model, inputs))
        losses = [output.square().mean() for output in outputs if output.requires_grad and output.is_floating_point()]
    if losses:
        torch.autograd.backward(losses)


def _autocast(dtype: str, cached: bool = True) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", getattr(torch, dtype), cache_enabled=cached) if dtype else nullcontext()


def _fallbacks(model: nn.Module) -> int:
    return sum(fallback.calls for fallback in report(model).fallbacks)


@contextmanager
def _without_log() -> Iterator[None]:
    """Suppress the log in the block: messages of guards and captures about a model on paper are noise."""
    before, _LOG.disabled = _LOG.disabled, True
    try:
        yield
    finally:
        _LOG.disabled = before


def _estimate_of_holding(holding: PeakHoldings, spread_: Spread, fused: int) -> MemoryEstimate:
    """The memory of one device. Shares apply to every moment of the step, because its peak can move."""
    most, states, host = dict[str, int](), 0, 0.0
    for kinds in holding.over_time():
        mine = {kind: spread_.device_bytes(kind, kinds.get(kind, 0)) for kind in KINDS}
        if sum(mine.values()) >= sum(most.values()):
            most = mine
        states = max(states, sum(mine[kind] for kind in STATES))
        host = max(host, sum(kinds.get(kind, 0) * share for kind, share in spread_.host.items()))
    host_bytes = int(host) + spread_.host_added
    if spread_.changes_nothing:
        return MemoryEstimate(replace(holding.memory, source=SOURCE), holding.by_layer, fused, states)
    most["temporaries"] += spread_.whole
    memory = replace(Memory(sum(most.values()), source=f"{SOURCE}, then divided by formula"), **most)  # type: ignore[arg-type]
    return MemoryEstimate(memory, holding.by_layer, fused, states, host_bytes)
