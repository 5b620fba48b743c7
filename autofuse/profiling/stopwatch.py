"""Times whole steps with no instrument on, and says how sure the middle one is. Knows clocks and no models."""

from __future__ import annotations

from autofuse.medians import median_interval

__all__ = ["median_interval"]
