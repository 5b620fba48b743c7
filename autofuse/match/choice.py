"""Chooses among overlapping sites: the site with the greater benefit is replaced.

This file sees a site as a set of values. It does not decide whether a site is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from autofuse.ir.graph import Value
from autofuse.match.site import Site
from autofuse.rule import Fails, Holds, Unknown


def choose_sites(found: Iterable[Site], usable: Callable[[Site], bool]) -> list[Site]:
    """Choose the sites to replace, none of which overlap, and the sites to report.

    A site that cannot be replaced never blocks another site. It is not reported if a chosen site replaces its values.

    Args:
        found: all sites.
        usable: whether the caller can replace a site.

    Returns:
        The sites to replace and the sites to report, in program order.
    """
    # A negated result comes last. If both a loss and its negative match, the program keeps the sign that it has.
    ranked = sorted(found, key=lambda s: (-s.rule.rule.benefit, s.results[-1].negated, -s.root.serial))
    can_replace = [isinstance(site.verdict, Holds) and usable(site) for site in ranked]
    others = [s for s, can in zip(ranked, can_replace, strict=True) if not can]
    replaced = _without_overlap([s for s, can in zip(ranked, can_replace, strict=True) if can])
    replaced = [replace(site, covers=_codes_inside(site, ranked)) for site in replaced]
    reported: dict[object, Site] = {}
    matched = {site.root for site in ranked if site.captures}
    for site in others:
        # A near miss of one rule, which captures nothing, is pointless where another rule matches.
        if not site.captures and site.root in matched or any(_is_replaced(site, by) for by in replaced):
            continue
        key = (site.root, site.rule.rule.code)
        best = reported.get(key)
        reported[key] = site if best is None or _rank(site) > _rank(best) else best
    return sorted([*replaced, *reported.values()], key=lambda s: s.root.serial)


def _without_overlap(ranked: list[Site]) -> list[Site]:
    """The sites in order, without a site that overlaps an earlier one, or that has a partner which is not replaced."""
    used: set[Value] = set()
    chosen = []
    for site in ranked:
        if not used & extent(site):
            used |= extent(site)
            chosen.append(site)
    sharing = {v for s in chosen if s.rule.rule.shares_steps for v in extent(s)}
    alone = {id(s) for s in chosen if not s.partners <= sharing}
    return _without_overlap([s for s in ranked if id(s) not in alone]) if alone else chosen


def _codes_inside(site: Site, found: Iterable[Site]) -> tuple[str, ...]:
    """The codes of the other sites that lie inside `site` and disappear with it."""
    inner = (s for s in found if isinstance(s.verdict, Holds) and s.root in site.removed.values)
    return tuple(sorted({s.rule.rule.code for s in inner if not s.rule.rule.fallback} - {site.rule.rule.code}))


def _is_replaced(site: Site, by: Site) -> bool:
    """Whether the replacement of `by` makes a report about `site` pointless."""
    if site.root in by.removed.values:
        return True
    return site.rule.rule.code == by.rule.rule.code and bool(extent(by) & {*site.steps, site.root})


def _rank(site: Site) -> tuple[int, int]:
    """Rank the sites of one root. The site whose match came furthest has the most useful reason."""
    return (Fails, Unknown, Holds).index(type(site.verdict)), len(site.steps)


def extent(site: Site) -> set[Value]:
    """The values that the replacement of a site removes or replaces."""
    return {*site.removed.values, *(r.value for r in site.results)}
