"""The cost of operators by module and phase, as traces and instruments report it. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from autofuse.results.profile import Work

Phase = Literal["forward", "backward"]
Own = Mapping[tuple[str, Phase], Work]  # by module name and phase, without the modules that the module calls
