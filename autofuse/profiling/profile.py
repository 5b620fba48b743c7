"""profile(model, inputs): one training step looked at from every side. It puts the parts together, no more."""

from __future__ import annotations
