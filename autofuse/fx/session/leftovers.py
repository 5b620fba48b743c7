"""What a capture leaves behind, and somebody could find: classes derived from the user's, and references to parameters.

`Attention.__subclasses__()` lists the class of a twin for as long as it lives, and torch swaps no tensor to which a
weak reference is left (`torch.utils.swap_tensors`, `module.to()` of parameters of other classes). Both hang on cycles
of twins and stand-ins, which Python frees when it collects garbage the next time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from autofuse.fx.trace.twin import forget_classes
from autofuse.fx.trace.unseen_copies import forget_copies


@contextmanager
def nothing_left() -> Iterator[None]:
    """Free what is made in this block and hangs on cycles. What was there before is not looked through."""
    frozen = gc.get_freeze_count() > 0  # by the user, or by a block around this one
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        forget_classes()
        forget_copies()
        gc.collect()
        if not frozen:
            gc.unfreeze()
