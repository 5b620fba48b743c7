"""What is wrong with a code that a user named. Apart from selection.py, which loads rules."""

from __future__ import annotations


class UnknownCode(ValueError):
    """A code, or a prefix of codes, that no rule bears; the message names those that exist."""
