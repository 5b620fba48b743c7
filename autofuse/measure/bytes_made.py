"""The bytes of all tensors that operators make: at least what a run holds at once, told on fakes too.

torch.distributed._tools.mem_tracker.MemTracker tells the peak itself, and takes half a second to import and several
times as long to run. Knows storages; must not know what runs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from autofuse.torch_private import TorchDispatchMode, pytree

Bytes = Counter[torch.device]


class BytesMade(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts in the block what each operator returns, but for views and what it was given. `so_far`: by device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.so_far = Bytes()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor) and x.layout is torch.strided]
        if made:
            given = {x.untyped_storage()._cdata for x in pytree.arg_tree_leaves(*args, **(kwargs or {}))
                     if isinstance(x, Tensor) and x.layout is torch.strided}  # fmt: skip
            for x in made:
                storage = x.untyped_storage()
                if storage._cdata not in given:
                    self.so_far[x.device] += int(storage.nbytes())
        return result
