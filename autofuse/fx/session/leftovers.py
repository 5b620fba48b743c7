"""Frees the leftovers of a capture that user code could observe: derived classes, and references to parameters.

`Attention.__subclasses__()` lists the class of a twin as long as the twin exists. torch does not swap a tensor that has
weak references (`torch.utils.swap_tensors`, `module.to()`). Both are held by reference cycles of twins and stand-ins,
which would otherwise exist until the next garbage collection.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from autofuse.fx.trace.twin import forget_classes
from autofuse.fx.trace.unseen_copies import forget_copies

_THREAD = threading.local()


@contextmanager
def without_leftovers() -> Iterator[None]:
    """Free the reference cycles that the block creates. Older objects are not examined.

    Garbage collection is off during the block, so all of its objects are in the youngest generation at its end.
    """
    # The outermost block frees the cycles of nested captures.
    if getattr(_THREAD, "inside", False):
        yield
        return
    collects = gc.isenabled()
    gc.disable()
    _THREAD.inside = True
    try:
        yield
    finally:
        _THREAD.inside = False
        forget_classes()
        forget_copies()
        gc.collect(0)
        if collects:
            gc.enable()
