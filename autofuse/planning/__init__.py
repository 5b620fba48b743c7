"""Simulation: will a training step fit, and what to expect of it, before anything is run or bought."""

from __future__ import annotations

from autofuse.planning.plan import plan

__all__ = ["plan"]
