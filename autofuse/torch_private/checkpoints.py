"""The generator that torch.utils.checkpoint steps before and after a function whose activations it does not keep.

torch has no public way to see that a function is checkpointed. A version without the generator leaves `replaced`
without effect. Then autofuse changes no forward that checkpoints a part of itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import checkpoint

Steps = Generator[None, None, None]
# Since torch 2.14, checkpoint steps the first one, which gets the function's arguments as a tuple and a dict.
_GENERATORS = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")


@contextmanager
def replaced(make: Callable[[Callable[..., Steps]], Callable[..., Steps]]) -> Iterator[None]:
    """Inside the block, torch steps `make(original)` instead of its own generator."""
    name = next((name for name in _GENERATORS if hasattr(checkpoint, name)), None)
    if name is None:
        yield
        return
    original = getattr(checkpoint, name)
    setattr(checkpoint, name, make(original))
    try:
        yield
    finally:
        setattr(checkpoint, name, original)


def options_of(original: Callable[..., Steps], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The options of checkpoint by name, as its generator gets them."""
    given = inspect.signature(original).bind(*args, **kwargs)
    given.apply_defaults()
    return {k: v for k, v in given.arguments.items() if k not in ("fn", "function", "args", "kwargs")}


def is_plain(options: dict[str, Any]) -> bool:
    """Whether a checkpoint runs its function in no other context, and prints nothing."""
    contexts = options.get("context_fn", checkpoint.noop_context_fn)
    prints = options.get("debug") or getattr(checkpoint, "_checkpoint_debug_enabled", None)
    return contexts is checkpoint.noop_context_fn and not prints
