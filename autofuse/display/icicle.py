"""The icicle view of modules: a bar for each, as wide as its time, below the module that contains it.

Repeated layers are one bar. This file does not depend on the source of the times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from autofuse.display.folding import RepeatedLayers, fold_layers
from autofuse.display.layer_tables import layer_name
from autofuse.results import units
from autofuse.results.profile_parts import Layer

_NARROWEST = 1 / 400  # fraction of the widest bar: a narrower bar cannot be clicked, and only the table shows it
_SHADES = 6


@dataclass(frozen=True)
class ModuleBox:
    """One module, or several equal ones.

    Attributes:
        name: The fully qualified name, with "*" for the number of a repeated block.
        label: The last part of the name, with the count.
        seconds: Seconds of one step, everything below it included.
        own: Seconds of one step without the modules below it.
        children: The modules below it, the longest first.
    """

    name: str
    label: str
    seconds: float
    own: float
    children: tuple[ModuleBox, ...] = ()


@dataclass(frozen=True)
class IcicleChart:
    """Modules from the top down. step: seconds of the step, of which shares are fractions."""

    title: str
    nodes: tuple[ModuleBox, ...]
    step: float
    legend: Mapping[str, str] = field(default_factory=dict)

    def markup(self) -> Markup:
        """Nested lists of buttons, which a screen reader reads as a tree."""
        widest = sum(node.seconds for node in self.nodes)
        inner = self._list(self.nodes, 0.0, widest * _NARROWEST)
        return Markup('<div class="icicle" role="group" aria-label="{}">{}</div>').format(self.title, inner)

    def _list(self, nodes: Sequence[ModuleBox], own: float, narrowest: float) -> Markup:
        shown = [node for node in nodes if node.seconds >= narrowest and node.seconds > 0]
        if not shown:
            return Markup()
        rest = own + sum(node.seconds for node in nodes if node not in shown)
        items = Markup().join(self._item(node, narrowest) for node in shown)
        gap = Markup('<li aria-hidden="true" style="flex:{} 1 0"></li>').format(_flex_factor(rest)) if rest > 0 else ""
        return Markup("<ul>{}{}</ul>").format(items, gap)

    def _item(self, node: ModuleBox, narrowest: float) -> Markup:
        below = self._list(node.children, node.own, narrowest)
        described = self._description(node)
        button = Markup('<button type="button" class="heat-{}" title="{}" aria-label="{}">{}</button>')
        drawn = button.format(self._shade(node), described, described, node.label)
        return Markup('<li style="flex:{} 1 0">{}{}</li>').format(_flex_factor(node.seconds), drawn, below)

    def _description(self, node: ModuleBox) -> str:
        share = f", {units.percent(node.seconds / self.step)} of the step" if self.step > 0 else ""
        own = f"; {units.duration(node.own)} without what it calls" if node.children else ""
        return f"{layer_name(node.name)}: {units.duration(node.seconds)}{share}{own}"

    def _shade(self, node: ModuleBox) -> int:
        """The shade of a bar. It is the darkest if the module's own time is a fifth of the step or more."""
        return min(_SHADES - 1, int(5 * (_SHADES - 1) * node.own / self.step)) if self.step > 0 else 0


def icicle_chart(layers: Sequence[Layer], step: float) -> IcicleChart | None:
    """The chart of a profile's layers; None if no module is known. step: seconds of one step."""
    nodes = tuple(_tree(layers))
    if not any(node.children for node in nodes):
        return None
    title = "Modules by the time that they take: each bar is part of the one above it. Select a bar to enlarge it."
    legend = {"heat-0": "little time of its own", "heat-5": "a fifth of the step or more is its own time"}
    return IcicleChart(title, nodes, step, legend)


def _tree(layers: Sequence[Layer]) -> Iterator[ModuleBox]:
    """The modules that no other module contains, with the modules below them."""
    folds: dict[str, list[RepeatedLayers]] = {}
    for fold in fold_layers(layers):
        folds.setdefault(fold.name, []).append(fold)
    below: dict[str | None, list[str]] = {}
    for name in folds:
        below.setdefault(_name_of_parent(name, folds), []).append(name)
    yield from _nodes(None, folds, below)


def _nodes(
    parent: str | None, folds: Mapping[str, Sequence[RepeatedLayers]], below: Mapping[str | None, Sequence[str]]
) -> Iterator[ModuleBox]:
    found = []
    for name in below.get(parent, ()):
        children = tuple(_nodes(name, folds, below))
        own = sum(fold.work.seconds for fold in folds[name])
        # A module that another module calls counts by its name, so that its parts never exceed the whole.
        seconds = max(sum(fold.seconds for fold in folds[name]), own + sum(child.seconds for child in children))
        found.append(ModuleBox(name, _label(name, parent, folds[name]), seconds, own, children))
    yield from sorted(found, key=lambda node: -node.seconds)


def _name_of_parent(name: str, folds: Mapping[str, object]) -> str | None:
    """The nearest name that contains this one; None at the top."""
    if not name or name.startswith("("):  # the model itself, or operators in no module
        return None
    above = name
    while "." in above:
        above = above.rpartition(".")[0]
        if above in folds:
            return above
    return "" if "" in folds else None


def _label(name: str, parent: str | None, folds: Sequence[RepeatedLayers]) -> str:
    short = layer_name(name).removeprefix(f"{parent}." if parent else "")
    if short == "*":
        short = ".".join(name.split(".")[-2:])  # "h.*": "*" alone would say nothing
    count = sum(fold.count for fold in folds)
    return f"{short} ×{count}" if count > 1 else short


def _flex_factor(seconds: float) -> str:
    """A flex factor: microseconds, so that no factor is below 1 unless the bar is invisible."""
    return f"{1e6 * seconds:.3f}"
