"""Spellings that a door does not find yet, and why. Must shrink to nothing: one that is found fails its test.

(door, class) -> reason. The doors are "live", "text" (with --unsafe) and "safe" (text, without).
"""

from __future__ import annotations

NOT_YET: dict[tuple[str, str], str] = {}
