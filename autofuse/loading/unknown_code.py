"""The error for an unknown code. It has its own module, because selection.py imports more."""

from __future__ import annotations


class UnknownCode(ValueError):
    """No rule has a code with the prefix that a user named. The message suggests a code."""
