"""What a capture leaves behind, and somebody could find: classes derived from the user's, and references to parameters.

`Attention.__subclasses__()` lists the class of a twin for as long as it lives, and torch swaps no tensor to which a
weak reference is left (`torch.utils.swap_tensors`, `module.to()` of parameters of other classes). Both hang on cycles
of twins and stand-ins, which Python frees when it collects garbage the next time.
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
def nothing_left() -> Iterator[None]:
    """Free what is made in this block and hangs on cycles. What was there before is not looked through.

    No garbage is collected within the block, so all that it makes is in the youngest generation at its end.
    """
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
