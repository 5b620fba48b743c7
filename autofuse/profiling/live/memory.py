"""The purpose of the memory that is held at the peak of a step, and the layer that holds it.

storage_log.py records when storages are allocated and freed. This file knows what parameters, gradients and optimizer
states are.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.storage_log import Storages, StoredTensor
from autofuse.results.profile import OUTSIDE, Memory
from autofuse.torch_private import pytree

_SOURCE = "storages of tensors as torch's dispatcher returns them"
_WITH_WORKSPACE = ", and within operators the profiler's allocation events"
_WITHOUT_WORKSPACE = "; without the memory that kernels take while they run"


class PeakHoldings:
    """A context manager around one or more steps: what is held at their peak, and by which layer.

    Everything that is alive counts: what existed before (parameters, buffers, gradients, optimizer states, inputs) and
    what the step allocates. Memory that an operator takes while it runs, besides its results, is temporary: a fused
    operation's workspace, for example. On a CPU the profiler measures it, unless another profiler runs. On CUDA the
    allocator's own peak is the total. Memory that an allocator holds without use is not included. glibc's adds 10 to 40
    % to a process's size unless MALLOC_MMAP_THRESHOLD_ is 65536.

    A storage counts once, with all its bytes, however many tensors view it. It is an activation if it was created in a
    forward (also a forward that checkpointing recomputes) and is alive when a backward begins. If it lives shorter, it
    is temporary. Everything else that a backward or an optimizer creates is temporary, too, except gradients and
    states. Tensors that the step uses but did not create count as inputs from then on.

    After the block, `memory` has the kinds, which add up to the peak. `by_layer` has the bytes at the peak by fully
    qualified name, which add up to it, too. A parameter, its gradient and its state belong to the module that has the
    parameter. Everything else belongs to the module whose forward or backward allocated it, or to OUTSIDE.

    Under FakeTensorMode the numbers are the same, and nothing is computed. A compiled model runs its original code
    meanwhile.

    Raises:
        RuntimeError: Module calls are watched already.
    """

    memory: Memory
    by_layer: Mapping[str, int]

    def __init__(
        self,
        names: ModuleNames,
        optimizers: Iterable[Optimizer] = (),
        device: torch.device | str = "cpu",
        inputs: Any = None,
    ) -> None:
        """Prepare the measurement.

        Args:
            names: The modules' names.
            optimizers: Those whose state exists already. Others are found when they step.
            device: The device whose memory counts.
            inputs: Tensors, nested in any way.
        """
        self.names, self.optimizers, self.inputs = names, tuple(optimizers), inputs
        self.device = torch.device(device)
        self._storages = Storages(names, self.device)
        self._owners: dict[Tensor, str] = {}  # parameter -> the module that has it
        self._stack = ExitStack()

    def __enter__(self) -> PeakHoldings:
        gc.collect()  # earlier passes leave reference cycles that hold tensors
        self._mark_existing()
        self._others = _allocated_bytes(self.device) - self._storages.total
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        with ExitStack() as stack:
            for parameter, layer in self._owners.items():
                if parameter.requires_grad and parameter.is_leaf:
                    hook = _when_accumulated(parameter, partial(self._mark_gradient, layer=layer))
                    stack.callback(hook.remove)
            stack.callback(register_optimizer_step_pre_hook(self._before_optimizer).remove)
            stack.callback(register_optimizer_step_post_hook(self._after_optimizer).remove)
            stack.enter_context(self._storages.watching())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        peak = self._storages.peak()
        kinds: Any = Counter(temporaries=peak.workspace)
        layers = Counter({peak.layer: peak.workspace})
        for piece, size in self._storages.alive_at(peak):
            kinds[self._kind(piece)] += size
            layers[piece.layer] += size
        unseen_bytes = self._unseen_bytes(peak.held + peak.workspace)
        kinds["temporaries"] += unseen_bytes
        layers[OUTSIDE] += unseen_bytes
        self.memory = replace(Memory(sum(kinds.values()), source=self._source()), **kinds)
        self.by_layer = MappingProxyType({layer: size for layer, size in layers.items() if size})

    def _unseen_bytes(self, seen: int) -> int:
        """Return the bytes of CUDA's own peak that were not seen, without memory that other code held before."""
        if self.device.type != "cuda":
            return 0
        torch.cuda.synchronize(self.device)
        return max(0, torch.cuda.max_memory_allocated(self.device) - max(0, self._others) - seen)

    def _source(self) -> str:
        if self.device.type == "cuda":
            return f"torch.cuda.max_memory_allocated, split by {_SOURCE}"
        return _SOURCE + (_WITH_WORKSPACE if self._storages.workspace.most else _WITHOUT_WORKSPACE)

    def over_time(self) -> Iterator[Mapping[str, int]]:
        """Yield bytes by kind at the end of each operator, without workspaces. All are one mapping, which changes."""
        kinds: Counter[str] = Counter()
        at = 0
        for moment in self._storages.moments:
            for piece, change in self._storages.changes[at : moment.place]:
                kinds[self._kind(piece)] += change
            at = moment.place
            yield kinds

    # Kinds of memory.

    def _mark_existing(self) -> None:
        mark = self._storages.mark
        for name, module in self.names.items():
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._owners.setdefault(parameter, name)
                    mark(parameter, "parameters", name)
                    self._mark_gradient(parameter, name)
            for buffer in module._buffers.values():
                if buffer is not None:
                    mark(buffer, "buffers", name)
        for optimizer in self.optimizers:
            self._mark_state(optimizer)
        for x in pytree.tree_leaves(self.inputs):
            if isinstance(x, Tensor):
                mark(x, "inputs", OUTSIDE)

    def _mark_gradient(self, parameter: Tensor, layer: str) -> None:
        if parameter.grad is not None:
            self._storages.mark(parameter.grad, "gradients", layer)

    def _before_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        self._storages.in_optimizer = True
        self._mark_state(optimizer)

    def _after_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        self._storages.in_optimizer = False
        self._mark_state(optimizer)

    def _mark_state(self, optimizer: Optimizer) -> None:
        """Mark an optimizer's state, and parameters that no model has: copies of higher precision, with gradients."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in self._owners:
                    self._storages.mark(parameter, "optimizer", OUTSIDE)
                    self._mark_gradient(parameter, OUTSIDE)
        for parameter, state in optimizer.state.items():
            for x in pytree.tree_leaves(state):
                if isinstance(x, Tensor):
                    self._storages.mark(x, "optimizer", self._owners.get(parameter, OUTSIDE))

    def _kind(self, piece: StoredTensor) -> str:
        if piece.mark is not None:
            return piece.mark
        if piece.existed:
            return "inputs"
        return "activations" if self._storages.outlived_its_forward(piece) else "temporaries"


def _when_accumulated(parameter: Any, then: Callable[[Tensor], None]) -> Any:
    """Register a hook on a tensor, which no module notices."""
    return parameter.register_post_accumulate_grad_hook(then)


def _allocated_bytes(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
