"""Spellings that a door does not find yet, with the reason. Must shrink to nothing: one that is found fails its test."""

from __future__ import annotations

NOT_YET: dict[tuple[str, str], str] = {}  # (door, class) -> reason; the doors are "live" and "text"
