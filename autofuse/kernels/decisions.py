"""What was decided by measurement: which provider a kind of call goes to.

Knows kinds of calls and names of providers; must not know how either is measured or run.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """What calls have in common that one decision holds for. `sizes` are those that the operation goes by."""

    operation: str
    device: str
    dtype: str
    sizes: tuple[int, ...]
    training: bool
    deterministic: bool


def decided(kind: Kind) -> str:
    """The name of the provider that was measured to be best for such calls on this machine; "" where none was."""
    return ""
