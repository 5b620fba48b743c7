"""What one module of an optimized model runs, and which of its calls were looked at in vain. Plain data."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn

from autofuse.fx.install.codegen import Variant
from autofuse.fx.rewrite.module_plan import SiteKey
from autofuse.fx.trace.paths import Path
from autofuse.fx.trace.twin import plain_class

PATTERNS = 8  # how many kinds of call of one module are looked at after optimize


@dataclass(frozen=True)
class Exclusions:
    """What is not fused in a module: sites that failed a check, gained nothing or another rank left out, and rules.

    slower: sites that are not fused in one mode only, training (True) or inference (False).
    """

    sites: frozenset[SiteKey] = frozenset()
    rules: frozenset[str] = frozenset()
    slower: frozenset[tuple[bool, SiteKey]] = frozenset()

    def plus(self, sites: Collection[SiteKey] = (), rules: Collection[str] = ()) -> Exclusions:
        """These and more."""
        return replace(self, sites=self.sites | frozenset(sites), rules=self.rules | frozenset(rules))

    def plus_in(self, training: bool, sites: Collection[SiteKey]) -> Exclusions:
        """These, and `sites` in one mode."""
        return replace(self, slower=self.slower | {(training, site) for site in sites})

    def sites_in(self, training: bool) -> frozenset[SiteKey]:
        """The sites that are not fused in that mode."""
        return self.sites | {site for mode, site in self.slower if mode is training}


class ModuleState:
    """What one module runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.full: list[Variant] = []
        self.narrow: defaultdict[frozenset[Path], list[Variant]] = defaultdict(list)
        self.left = PATTERNS
        self.exclusions = Exclusions()
        self.armed = False  # whether other kinds of call are worth a look
        self.nothing_found: set[Hashable] = set()  # the kinds of call in which nothing was found
        self.slower_modes: set[bool] = set()  # in which something was left out for it made a step slower
        self.is_a_copys = False

    def for_a_copy(self) -> ModuleState:
        """The same for a copy of the module, which goes its own way from here on."""
        made = copy.copy(self)
        made.full, made.nothing_found = list(self.full), set(self.nothing_found)
        made.slower_modes = set(self.slower_modes)
        made.narrow = defaultdict(list, {unread: list(variants) for unread, variants in self.narrow.items()})
        made.is_a_copys = True
        return made

    @property
    def closed(self) -> frozenset[bool]:
        """The modes (True is training) in which the original runs, for all that could be fused makes it slower."""
        return frozenset(self.slower_modes - {v.training for v in self.full}) if self.runs else frozenset()

    @property
    def variants(self) -> list[Variant]:
        """Every forward that the module may run."""
        return self.full or [v for variants in self.narrow.values() for v in variants]

    @property
    def runs(self) -> bool:
        """Whether the module runs a forward of autofuse's."""
        return self.armed or bool(self.full or self.narrow)


States: TypeAlias = "WeakKeyDictionary[nn.Module, ModuleState]"


def states_of(modules: Iterable[tuple[str, nn.Module]], wants: Callable[[str, nn.Module], bool]) -> States:
    """A new state for each module that may be rewritten: the model itself, and those whose forward is the user's own.

    Modules are held weakly: a model may go. The first of `modules` is the model.
    """
    found: WeakKeyDictionary[nn.Module, ModuleState] = WeakKeyDictionary()
    for place, (name, module) in enumerate(modules):
        if (place == 0 or is_candidate(module)) and wants(name, module):
            found[module] = ModuleState(name)
    return found


def is_candidate(module: nn.Module) -> bool:
    """Whether the forward of a module is the code of its user, and may be rewritten."""
    kind = plain_class(type(module))
    return (
        not kind.__module__.startswith("torch.")
        and "forward" in dir(kind)
        and not isinstance(module, torch.jit.ScriptModule)
    )
