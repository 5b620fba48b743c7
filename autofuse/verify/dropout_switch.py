"""A switch that turns dropout off in autofuse's own operations while the verifier runs them.

torch's dropout functions are switched off when they are called (arithmetic.py). autofuse's kernels call no such
function, so they ask this file.
"""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[float], None]] = []


def switch_dropout_off(record_rate: Callable[[float], None]) -> None:
    """Turn dropout off in all operations; each then calls `note` with the rate that it would have used."""
    _listeners.append(record_rate)


def restore_dropout() -> None:
    """Undo the last switch_dropout_off."""
    _listeners.pop()


def is_dropout_off(rate: float) -> bool:
    """Whether an operation with this dropout rate must not drop; the call reports the rate to the verifier."""
    if _listeners:
        _listeners[-1](rate)
    return bool(_listeners)
