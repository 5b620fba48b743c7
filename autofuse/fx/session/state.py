"""What one module of an optimized model runs, and which of its calls were looked at in vain. Plain data."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Hashable

from autofuse.fx.install.codegen import Variant
from autofuse.fx.rewrite.module_plan import SiteKey
from autofuse.fx.trace.paths import Path

PATTERNS = 8  # how many kinds of call of one module are looked at after optimize


class ModuleState:
    """What one module runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.full: list[Variant] = []
        self.narrow: defaultdict[frozenset[Path], list[Variant]] = defaultdict(list)
        self.left = PATTERNS
        self.excluded: frozenset[SiteKey] = frozenset()  # they fail verification
        self.left_out: set[SiteKey] = set()  # another rank did not fuse them
        self.without: set[str] = set()  # rules that it has no use for in this module
        self.armed = False  # whether other kinds of call are worth a look
        self.nothing_found: set[Hashable] = set()  # the kinds of call in which nothing was found
        self.is_a_copys = False

    def for_a_copy(self) -> ModuleState:
        """The same for a copy of the module, which goes its own way from here on."""
        made = copy.copy(self)
        made.full, made.left_out, made.nothing_found = list(self.full), set(self.left_out), set(self.nothing_found)
        made.narrow = defaultdict(list, {unread: list(variants) for unread, variants in self.narrow.items()})
        made.is_a_copys = True
        return made

    @property
    def variants(self) -> list[Variant]:
        """Every forward that the module may run."""
        return self.full or [v for variants in self.narrow.values() for v in variants]

    @property
    def runs(self) -> bool:
        """Whether the module runs a forward of autofuse's."""
        return self.armed or bool(self.full or self.narrow)
