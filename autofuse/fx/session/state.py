"""The state of one module: its forwards, its excluded sites, and the calls that cannot be fused."""

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

PATTERNS = 8  # how many kinds of call of one module are captured after optimize


@dataclass(frozen=True)
class Exclusions:
    """The sites and rules that are not fused in a module.

    Attributes:
        sites: Sites that failed a check, gained nothing, or are not fused on another rank.
        rules: Codes of excluded rules.
        slower: Sites that are not fused in one mode, training (True) or inference (False).
    """

    sites: frozenset[SiteKey] = frozenset()
    rules: frozenset[str] = frozenset()
    slower: frozenset[tuple[bool, SiteKey]] = frozenset()

    def plus(self, sites: Collection[SiteKey] = (), rules: Collection[str] = ()) -> Exclusions:
        """These exclusions and more."""
        return replace(self, sites=self.sites | frozenset(sites), rules=self.rules | frozenset(rules))

    def plus_in(self, training: bool, sites: Collection[SiteKey]) -> Exclusions:
        """These exclusions, and `sites` in one mode."""
        return replace(self, slower=self.slower | {(training, site) for site in sites})

    def sites_in(self, training: bool) -> frozenset[SiteKey]:
        """The sites that are not fused in a mode."""
        return self.sites | {site for mode, site in self.slower if mode is training}


class ModuleState:
    """The state of one module.

    Attributes:
        name: The name of the module in the model.
        full: Its rewritten forwards.
        narrow: Its narrow forwards, by the omitted parts of the result.
        captures_left: How many new kinds of call may still be captured.
        exclusions: The sites and rules that are not fused.
        captures_new_calls: Whether new kinds of call are captured.
        unfusable_calls: The kinds of call in which nothing can be fused.
        slower_modes: The modes in which a site was excluded because it made a step slower.
        belongs_to_copy: Whether the module is a copy of one in the optimized model.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.full: list[Variant] = []
        self.narrow: defaultdict[frozenset[Path], list[Variant]] = defaultdict(list)
        self.captures_left = PATTERNS
        self.exclusions = Exclusions()
        self.captures_new_calls = False
        self.unfusable_calls: set[Hashable] = set()
        self.slower_modes: set[bool] = set()
        self.belongs_to_copy = False

    def state_of_copy(self) -> ModuleState:
        """The state of a copy of the module. It then changes independently."""
        copied_state = copy.copy(self)
        # copy.copy is shallow: lists and sets of the two states must be separate.
        copied_state.full, copied_state.unfusable_calls = list(self.full), set(self.unfusable_calls)
        copied_state.slower_modes = set(self.slower_modes)
        copied_state.narrow = defaultdict(list, {unread: list(variants) for unread, variants in self.narrow.items()})
        copied_state.belongs_to_copy = True
        return copied_state

    @property
    def original_modes(self) -> frozenset[bool]:
        """The modes (True is training) in which the original runs, because every fused site makes it slower."""
        return frozenset(self.slower_modes - {v.training for v in self.full}) if self.runs else frozenset()

    @property
    def variants(self) -> list[Variant]:
        """All forwards that the module may run."""
        return self.full or [v for variants in self.narrow.values() for v in variants]

    @property
    def runs(self) -> bool:
        """Whether the module runs a forward of autofuse."""
        return self.captures_new_calls or bool(self.full or self.narrow)


States: TypeAlias = "WeakKeyDictionary[nn.Module, ModuleState]"


def states_of(modules: Iterable[tuple[str, nn.Module]], wants: Callable[[str, nn.Module], bool]) -> States:
    """A new state for each module that may be rewritten: the model, and modules with a user-defined forward.

    Args:
        modules: Names and modules; the model is first. They are referenced weakly.
        wants: Whether a module is selected.
    """
    found: WeakKeyDictionary[nn.Module, ModuleState] = WeakKeyDictionary()
    for place, (name, module) in enumerate(modules):
        if (place == 0 or is_candidate(module)) and wants(name, module):
            found[module] = ModuleState(name)
    return found


def is_candidate(module: nn.Module) -> bool:
    """Whether a module has a user-defined forward that may be rewritten."""
    kind = plain_class(type(module))
    return (
        not kind.__module__.startswith("torch.")
        and "forward" in dir(kind)
        and not isinstance(module, torch.jit.ScriptModule)
    )
