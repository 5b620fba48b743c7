"""Detects writes to a tensor after it was read.

On a CPU the memory is shared copy-on-write with a copy, so any write moves it: by in-place operators, `x.data`, numpy
or DLPack. On other devices only the writes that autograd counts are detected.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autofuse.torch_private import data_address, is_cow_tensor, lazy_clone, storage_users, tensor_users

State = tuple[object, ...]


def state_of(x: Tensor) -> State:
    """A value that changes whenever the contents of `x` may have changed. On a CPU, `x` must be watched for that.

    Copy-on-write memory is copied as soon as code requests a mutable pointer: in-place operators, `x.data`, numpy,
    DLPack. On other devices only the writes that autograd counts are detected.
    """
    if x.is_cpu:
        return is_cow_tensor(x) or (_version(x),), data_address(x), x.stride(), x.shape
    return _version(x), x.data_ptr(), x.stride(), x.shape


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version  # inference tensors count no writes


@torch.no_grad()
def watch(x: Tensor) -> Tensor | None:
    """A second owner of the memory of `x`, on a CPU; None if code outside of torch may write to that memory."""
    if not _is_held_once(x):
        return None
    try:
        shadow: Tensor = lazy_clone(x)
    except RuntimeError:  # torch does not own the memory
        return None
    return shadow if is_cow_tensor(x) else None


def _is_held_once(x: Tensor) -> bool:
    """Whether only `x`, and the tensor of which it is a view, hold its memory.

    A numpy array or a DLPack consumer holds an address. A write moves shared memory, and the array would keep the old
    address. torch does not allow to resize memory that it passed to numpy. DLPack holds the tensor.
    """
    storage, base = x.untyped_storage(), x._base
    if not storage.resizable() or tensor_users(x) != 1:
        return False
    if base is None:
        return bool(storage_users(storage._cdata) == 2)  # `x`, and `storage` here
    return bool(storage_users(storage._cdata) == 3 and tensor_users(base) == 2)  # the view, and `base` here
