"""A switch that turns dropout off in autofuse's own operations while a verifier runs them.

torch's dropouts are switched off where torch functions are called (arithmetic.py). Our kernels draw inside, so they ask
here.
"""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[float], None]] = []


def switch_dropout_off(note: Callable[[float], None]) -> None:
    """From now on no operation drops anything; `note` is called with the rate at which each would have."""
    _listeners.append(note)


def restore_dropout() -> None:
    """Undo the last switch_dropout_off."""
    _listeners.pop()


def is_dropout_off(rate: float) -> bool:
    """Whether an operation that would drop at `rate` must not; asking tells the verifier of the rate."""
    if _listeners:
        _listeners[-1](rate)
    return bool(_listeners)
