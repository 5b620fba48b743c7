"""Runs torch's grouped matrix product on fake tensors in each dtype that has kernels.

torch's own implementation for fake tensors accepts only bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autofuse.torch_private import GROUPED_MM, FakeTensor

_FUNCTIONS = tuple(f for f in (getattr(F, "grouped_mm", None), GROUPED_MM) if f is not None)
_DTYPES = (torch.float32, torch.float16)  # the dtypes of the kernels apart from bfloat16


def run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of function(*args, **kwargs)."""
    if function not in _FUNCTIONS or kwargs.get("out_dtype") is not None or len(args) > 2:
        return function(*args, **kwargs)
    dtypes = {x.dtype for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()}
    if len(dtypes) != 1 or not dtypes.issubset(_DTYPES) or not any(isinstance(x, FakeTensor) for x in args):
        return function(*args, **kwargs)
    half = [x.to(torch.bfloat16) if isinstance(x, Tensor) and x.is_floating_point() else x for x in args]
    return function(*half, **kwargs).to(dtypes.pop())
