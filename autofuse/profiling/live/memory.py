"""What memory is for at the moment of a step in which most of it is held, and whose it is.

Knows what parameters, gradients and optimizer states are; the lives of storages it gets from storage_log.py.
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
_WITHOUT_WORKSPACE = "; what kernels take while they run is not in it"


class PeakHoldings:
    """A context manager around one step or several: what is held at their peak, and by whom.

    Everything counts that is alive: what stood before (parameters, buffers, gradients, the optimizers' states, inputs)
    and what the step takes. What an operator takes while it runs, above its results, is temporary: a fused operation's
    workspace, say. On a CPU the profiler tells of it, unless it is in use; on CUDA the allocator's own peak is the
    total. Not in it is what an allocator holds and nobody uses: glibc's alone adds 10 to 40 % to a process's size
    where MALLOC_MMAP_THRESHOLD_ is not set to 65536.

    A storage counts once, with all its bytes, however many tensors look at it. Created in a forward (also in one that
    is computed again by checkpointing) and alive when a backward begins, it is an activation; what lives shorter, and
    what a backward or an optimizer makes that is no gradient and no state, is temporary. Tensors that the step meets
    and did not make count as inputs from then on.

    After the block: `memory`, whose kinds add up to its peak, and `by_layer`, bytes at the peak by fully qualified
    name, which add up to it as well: a parameter and its gradient and state belong to the module that has it,
    everything else to the module whose forward, or whose part of the backward, allocated it, or to OUTSIDE.

    Works under FakeTensorMode: same numbers, nothing computed. A compiled model runs its original code meanwhile.
    Raises RuntimeError where modules' calls are watched already.
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
        """`optimizers`: whose state stands already; others are met when they step. `inputs`: tensors, nested freely."""
        self.names, self.optimizers, self.inputs = names, tuple(optimizers), inputs
        self.device = torch.device(device)
        self._storages = Storages(names, self.device)
        self._owners: dict[Tensor, str] = {}  # parameter -> the module that has it
        self._stack = ExitStack()

    def __enter__(self) -> PeakHoldings:
        gc.collect()  # the passes before this one leave cycles that hold tensors of their steps
        self._mark_what_stands()
        self._others = _allocated(self.device) - self._storages.total
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        with ExitStack() as stack:
            for parameter, layer in self._owners.items():
                if parameter.requires_grad and parameter.is_leaf:
                    hook = _when_accumulated(parameter, partial(self._gradient, layer=layer))
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
        unseen = self._unseen(peak.held + peak.workspace)
        kinds["temporaries"] += unseen
        layers[OUTSIDE] += unseen
        self.memory = replace(Memory(sum(kinds.values()), source=self._source()), **kinds)
        self.by_layer = MappingProxyType({layer: size for layer, size in layers.items() if size})

    def _unseen(self, seen: int) -> int:
        """On CUDA what the allocator's own peak has above that; what others held as the step began is left out."""
        if self.device.type != "cuda":
            return 0
        torch.cuda.synchronize(self.device)
        return max(0, torch.cuda.max_memory_allocated(self.device) - max(0, self._others) - seen)

    def _source(self) -> str:
        if self.device.type == "cuda":
            return f"torch.cuda.max_memory_allocated, told apart by {_SOURCE}"
        return _SOURCE + (_WITH_WORKSPACE if self._storages.workspace.most else _WITHOUT_WORKSPACE)

    def over_time(self) -> Iterator[Mapping[str, int]]:
        """Bytes by kind at the end of every operator in turn, without workspaces: one mapping, which changes."""
        kinds: Counter[str] = Counter()
        at = 0
        for moment in self._storages.moments:
            for piece, change in self._storages.changes[at : moment.place]:
                kinds[self._kind(piece)] += change
            at = moment.place
            yield kinds

    # What is what.

    def _mark_what_stands(self) -> None:
        mark = self._storages.mark
        for name, module in self.names.items():
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._owners.setdefault(parameter, name)
                    mark(parameter, "parameters", name)
                    self._gradient(parameter, name)
            for buffer in module._buffers.values():
                if buffer is not None:
                    mark(buffer, "buffers", name)
        for optimizer in self.optimizers:
            self._state(optimizer)
        for x in pytree.tree_leaves(self.inputs):
            if isinstance(x, Tensor):
                mark(x, "inputs", OUTSIDE)

    def _gradient(self, parameter: Tensor, layer: str) -> None:
        if parameter.grad is not None:
            self._storages.mark(parameter.grad, "gradients", layer)

    def _before_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        self._storages.in_optimizer = True
        self._state(optimizer)

    def _after_optimizer(self, optimizer: Optimizer, *_: object) -> None:
        self._storages.in_optimizer = False
        self._state(optimizer)

    def _state(self, optimizer: Optimizer) -> None:
        """Its state, and parameters that no model has: copies of a higher precision, with their gradients."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in self._owners:
                    self._storages.mark(parameter, "optimizer", OUTSIDE)
                    self._gradient(parameter, OUTSIDE)
        for parameter, state in optimizer.state.items():
            for x in pytree.tree_leaves(state):
                if isinstance(x, Tensor):
                    self._storages.mark(x, "optimizer", self._owners.get(parameter, OUTSIDE))

    def _kind(self, piece: StoredTensor) -> str:
        if piece.mark is not None:
            return piece.mark
        if piece.stood:
            return "inputs"
        return "activations" if self._storages.outlived_its_forward(piece) else "temporaries"


def _when_accumulated(parameter: Any, then: Callable[[Tensor], None]) -> Any:
    """A hook on a tensor, which no module notices."""
    return parameter.register_post_accumulate_grad_hook(then)


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
