"""Counts the bytes of all tensors that operators create. This is an upper bound for a run's peak, also on fake tensors.

torch.distributed._tools.mem_tracker.MemTracker measures the peak itself, but takes half a second to import and several
times as long to run.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from autofuse.torch_private import TorchDispatchMode, pytree

BytesByDevice = Counter[torch.device]


class CreatedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that counts the storages of all results in the block. Views and results that are arguments do not count.

    Attributes:
        by_device: The bytes so far, for each device.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by_device = BytesByDevice()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor) and x.layout is torch.strided]
        if results:
            input_storages = {x.untyped_storage()._cdata for x in pytree.arg_tree_leaves(*args, **(kwargs or {}))
                     if isinstance(x, Tensor) and x.layout is torch.strided}  # fmt: skip
            for x in results:
                storage = x.untyped_storage()
                if storage._cdata not in input_storages:
                    self.by_device[x.device] += int(storage.nbytes())
        return result
