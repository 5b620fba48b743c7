"""Which of overlapping sites to act on: the one of greater benefit first.

Knows sites as ranges of values; decides nothing about whether one is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from autofuse.ir.graph import Value
from autofuse.match.site import Site
from autofuse.rule import Fails, Holds, Unknown


def chosen(found: Iterable[Site], usable: Callable[[Site], bool]) -> list[Site]:
    """The sites to act on, none overlapping another, then those worth reporting, in program order.

    A site that cannot be acted on never stands in the way of one that can, and is not reported where a match of
    greater benefit took its place.
    """
    ranked = sorted(found, key=lambda s: (-s.rule.rule.benefit, -s.root.serial))
    taken: set[Value] = set()
    acted, others = [], []
    for site in ranked:
        if not isinstance(site.verdict, Holds) or not usable(site):
            others.append(site)
        elif not taken & extent(site):
            taken |= extent(site)
            acted.append(site)
    acted = [replace(site, covers=_inside(site, ranked)) for site in acted]
    reported: dict[object, Site] = {}
    for site in others:
        if any(_replaced(site, by) for by in acted):
            continue
        key = (site.root, site.rule.rule.code)
        best = reported.get(key)
        reported[key] = site if best is None or _weight(site) > _weight(best) else best
    return sorted([*acted, *reported.values()], key=lambda s: s.root.serial)


def _inside(site: Site, found: Iterable[Site]) -> tuple[str, ...]:
    """The codes of other sites that acting on `site` takes care of."""
    inner = (s for s in found if isinstance(s.verdict, Holds) and s.root in site.doomed.values)
    return tuple(sorted({s.rule.rule.code for s in inner if not s.rule.rule.fallback} - {site.rule.rule.code}))


def _replaced(site: Site, by: Site) -> bool:
    """Whether acting on `by` leaves nothing to say about `site`."""
    if site.root in by.doomed.values:
        return True
    return site.rule.rule.code == by.rule.rule.code and bool(extent(by) & {*site.steps, site.root})


def _weight(site: Site) -> tuple[int, int]:
    """Of several reasons for one place, the one from the match that came furthest."""
    return (Fails, Unknown, Holds).index(type(site.verdict)), len(site.steps)


def extent(site: Site) -> set[Value]:
    """What acting on a site replaces."""
    return {*site.doomed.values, *(r.value for r in site.results)}
