"""The names of what new code may call. Plain words, so that reading a configuration loads no syntax trees."""

from __future__ import annotations

DEFAULT = "auto"
LIBRARIES = ("flash-attn", "apex", "liger")
TARGETS = (DEFAULT, "torch", "autofuse", *LIBRARIES)
