"""`autofuse demo`: one small model, before and after, from its loss to its source."""

from __future__ import annotations

from autofuse.demo.command import main

__all__ = ["main"]
