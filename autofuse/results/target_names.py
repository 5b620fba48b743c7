"""The names of the libraries that new code may call, as strings: reading a configuration imports no parser."""

from __future__ import annotations

DEFAULT = "auto"
LIBRARIES = ("flash-attn", "apex", "liger")
TARGETS = (DEFAULT, "torch", "autofuse", *LIBRARIES)
