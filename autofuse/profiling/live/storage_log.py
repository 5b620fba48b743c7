"""Records when tensors allocate and free memory, in which layer, and in which phase.

It sees the results of torch's dispatcher, as torch.distributed._tools.mem_tracker.MemTracker does, but uses no hooks.
MemTracker puts hooks on all modules, and an optimized model runs its original code if it has hooks. Memory that a
kernel allocates and frees while it runs is not seen.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from autofuse.profiling.live.kernel_workspace import Workspace
from autofuse.profiling.live.module_calls import ModuleNames, around_calls
from autofuse.results.profile import OUTSIDE
from autofuse.torch_private import (
    TorchDispatchMode,
    current_autograd_node,
    current_graph_task_id,
    fake_mode,
    get_sequence_nr,
    is_traceable_wrapper_subclass,
    pytree,
)

Epoch = Literal["forward", "recomputation", "backward", "optimizer"]
_BLOCK = 512  # bytes: torch's CUDA allocator rounds up to them (kMinBlockSize in CUDACachingAllocator.cpp)


class StoredTensor:
    """The memory of one storage.

    layer: the module that allocated it.
    epoch, died_in: indices in the list of epochs.
    existed: an operator of the step used it before any operator returned it.
    mark: its kind, if it was given.
    """

    __slots__ = ("died_in", "epoch", "existed", "layer", "mark", "reference", "size")

    def __init__(self, epoch: int, layer: str, existed: bool) -> None:
        self.size, self.epoch, self.layer, self.existed = 0, epoch, layer, existed
        self.died_in: int | None = None
        self.mark: str | None = None
        self.reference: Any = None  # weak, to the storage


@dataclass(frozen=True)
class Moment:
    """The end of an operator.

    place: how many changes there were before.
    held: bytes held then. before: bytes held when the operator began.
    layer: the module that it ran for.
    workspace: bytes that it took while it ran, besides those held at its end.
    """

    place: int
    held: int
    layer: str
    before: int = 0
    workspace: int = 0

    def with_workspace(self, most: int) -> Moment:
        """Return the moment of an operator that took at most `most` bytes at a time, its results included."""
        return replace(self, workspace=max(0, self.before + most - self.held))


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the life of every storage on `device` in a block around steps. Fake tensors count as real ones.

    total: bytes held now.
    """

    def __init__(self, names: ModuleNames, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names, self.device, self.workspace = names, device, Workspace()
        self.epochs: list[Epoch] = ["forward"]
        self.changes: list[tuple[StoredTensor, int]] = []
        self.total = 0
        self.moments = [Moment(0, 0, OUTSIDE)]
        self.in_optimizer = False
        self._known: Any = WeakIdKeyDictionary()
        self._stack = [OUTSIDE]
        self._numbers, self._owners = [-1], [OUTSIDE]  # from this sequence number on, nodes belong to this module

    # Results.

    def mark(self, tensor: Tensor, what: str, layer: str, over: tuple[str | None, ...] = (None,)) -> None:
        """Set the kind of a tensor's memory, if it has none or one of `over`."""
        for storage in storages_of(tensor):
            piece = self._known.get(storage)
            if piece is None:
                piece = self._add(storage, tensor.device, existed=True)
            if piece is not None and piece.mark in over:
                piece.mark, piece.layer = what, layer

    def peak(self) -> Moment:
        """Return the moment at which most was held, including memory that its operator took while it ran."""
        most = self.workspace.most
        within = (m.with_workspace(most.get(number, 0)) for number, m in enumerate(self.moments))
        return max(within, key=lambda m: m.held + m.workspace)

    def alive_at(self, moment: Moment) -> Iterator[tuple[StoredTensor, int]]:
        """Yield what was held at a moment, with its bytes."""
        sizes: dict[StoredTensor, int] = {}
        for piece, change in self.changes[: moment.place]:
            sizes[piece] = sizes.get(piece, 0) + change
        return ((piece, size) for piece, size in sizes.items() if size)

    def outlived_its_forward(self, piece: StoredTensor) -> bool:
        """Whether it was created in a forward and was alive when the next backward began."""
        if self.epochs[piece.epoch] not in ("forward", "recomputation"):
            return False
        for index in range(piece.epoch + 1, len(self.epochs)):
            if self.epochs[index] == "optimizer":
                return False
            if self.epochs[index] == "backward":
                return piece.died_in is None or piece.died_in >= index
        return False

    # While steps run.

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record everything in the block."""
        storages: Any = torch.UntypedStorage
        resize = storages.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            made = resize(storage, size)
            self._update_size(storage)
            return made

        storages.resize_ = resize_
        try:
            self.moments[0] = Moment(len(self.changes), self.total, OUTSIDE)
            workspace = nullcontext() if self._is_fake() else self.workspace.watching()
            with workspace, around_calls(self.names, self._call), self:
                yield
        finally:
            storages.resize_ = resize

    @contextmanager
    def _call(self, name: str, module: nn.Module) -> Iterator[None]:
        for parameter in module._parameters.values():
            if parameter is not None:
                self.mark(parameter, "parameters", name)
        self._stack.append(name)
        self._note_owner()
        try:
            yield
        finally:
            self._stack.pop()
            self._note_owner()

    def _note_owner(self) -> None:
        number = get_sequence_nr()  # of the next node that this thread makes
        if self._numbers[-1] == number:
            self._owners[-1] = self._stack[-1]
        elif self._numbers[-1] < number:  # recomputation on a device's own thread has its own numbers
            self._numbers.append(number)
            self._owners.append(self._stack[-1])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(_is_wrapper(t) for t in types):
            return NotImplemented  # torch unwraps it first, and then dispatches its parts
        self._update_epoch()
        for x in pytree.arg_tree_leaves(*args, **(kwargs or {})):
            if isinstance(x, Tensor):
                self._record_tensor(x, existed=True)
        before = self.total
        with self.workspace.operator(len(self.moments)):
            result = func(*args, **(kwargs or {}))
        for x in pytree.tree_leaves(result):
            if isinstance(x, Tensor):
                self._record_tensor(x, existed=False)
        self.moments.append(Moment(len(self.changes), self.total, self._running_module(), before))
        return result

    def _update_epoch(self) -> None:
        now = _phase()
        if now == "forward" and self.in_optimizer and len(self._stack) == 1:
            now = "optimizer"
        if now != self.epochs[-1]:
            self.epochs.append(now)

    def _record_tensor(self, x: Tensor, existed: bool) -> None:
        for storage in storages_of(x):
            if storage not in self._known:
                self._add(storage, x.device, existed)
            else:
                self._update_size(storage)

    def _add(self, storage: torch.UntypedStorage, device: torch.device, existed: bool) -> StoredTensor | None:
        if device.type != self.device.type or self.device.index not in (None, device.index):
            return None
        piece = StoredTensor(len(self.epochs) - 1, self._running_module(), existed)
        self._known[storage] = piece
        piece.reference = weakref.ref(storage, lambda _: self._release(piece))
        self._log_change(piece, self._bytes(storage))
        return piece

    def _update_size(self, storage: torch.UntypedStorage) -> None:
        piece = self._known.get(storage)
        if piece is not None and piece.size != self._bytes(storage):
            self._log_change(piece, self._bytes(storage) - piece.size)

    def _bytes(self, storage: torch.UntypedStorage) -> int:
        size = int(storage.nbytes())
        return -(-size // _BLOCK) * _BLOCK if self.device.type == "cuda" else size

    def _release(self, piece: StoredTensor) -> None:
        piece.died_in = len(self.epochs) - 1
        self._log_change(piece, -piece.size)

    def _log_change(self, piece: StoredTensor, by: int) -> None:
        piece.size += by
        self.total += by
        self.changes.append((piece, by))

    def _is_fake(self) -> bool:
        return fake_mode() is not None

    def _running_module(self) -> str:
        """Return the module that runs, or whose backward runs."""
        node: Any = current_autograd_node()
        if node is None or len(self._stack) > 1:
            return self._stack[-1]
        return self._owners[bisect_right(self._numbers, node._sequence_nr()) - 1]


def storages_of(x: Tensor) -> Iterator[torch.UntypedStorage]:
    """Yield a tensor's storages; for a tensor that consists of others (a DTensor, a sparse one), its parts'."""
    if is_traceable_wrapper_subclass(x):
        for name in x.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            part = getattr(x, name)
            if isinstance(part, Tensor):
                yield from storages_of(part)
    elif x.layout is torch.sparse_coo:
        yield from (part.untyped_storage() for part in (x._indices(), x._values()))
    elif x.layout is torch.strided:  # mkldnn's own layouts have no storage
        yield x.untyped_storage()


def _is_wrapper(kind: type) -> bool:
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def _phase() -> Epoch:
    """Return the running phase. A backward with gradients on recomputes a forward, or is itself differentiated."""
    if current_graph_task_id() == -1:
        return "forward"
    return "recomputation" if torch.is_grad_enabled() else "backward"
