"""Whether a tensor was written to since it was read: what is known of its numbers ends there.

On a CPU its memory is shared with a copy for copying on write, so that any write moves it: operators in place,
`x.data`, numpy, DLPack. Elsewhere only what autograd counts is seen. Must not know what was read, or why.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autofuse.torch_private import data_address, is_cow_tensor, lazy_clone, storage_users, tensor_users

State = tuple[object, ...]


def state_of(x: Tensor) -> State:
    """Changes with whatever can change the contents of `x`, which on a CPU has to be watched for that.

    On a CPU, memory that is shared for copying on write is copied as soon as anybody asks for a place to write to:
    operators in place, `x.data`, numpy, DLPack. Elsewhere only what autograd counts is seen.
    """
    if x.is_cpu:
        return is_cow_tensor(x) or (_version(x),), data_address(x), x.stride(), x.shape
    return _version(x), x.data_ptr(), x.stride(), x.shape


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version  # such tensors count no writes


@torch.no_grad()
def watched(x: Tensor) -> Tensor | None:
    """A second owner of the memory of `x`, on a CPU; None where torch has no say in who writes to it."""
    if not _is_held_once(x):
        return None
    try:
        shadow: Tensor = lazy_clone(x)
    except RuntimeError:  # the memory is another's
        return None
    return shadow if is_cow_tensor(x) else None


def _is_held_once(x: Tensor) -> bool:
    """Whether nobody but `x`, and the tensor that it is a view of, holds its memory.

    An array of numpy, or a consumer of DLPack, holds an address. A write moves memory that is shared, and the array
    would go on with the place where the buffer was. torch forbids to resize what numpy was given, and DLPack holds the
    tensor.
    """
    storage, base = x.untyped_storage(), x._base
    if not storage.resizable() or tensor_users(x) != 1:
        return False
    if base is None:
        return bool(storage_users(storage._cdata) == 2)  # by `x`, and by `storage` here
    return bool(storage_users(storage._cdata) == 3 and tensor_users(base) == 2)  # by the view, and by `base` here
