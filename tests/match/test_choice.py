"""Of overlapping sites, the one with the greatest benefit is replaced. Others are reported once per rule and root."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autofuse.match.choice import choose_sites, extent
from autofuse.match.site import Site
from autofuse.rule import Fails, Holds, Unknown, Verdict
from tests.match.test_engine import ATTENTION, sites_of_rule


@pytest.fixture
def site() -> Site:
    (only,) = sites_of_rule(ATTENTION.format(annotation=": float").replace("* scale", "* 0.125"), "AF101")
    return only


def everything(site: Site) -> bool:
    return True


def refused_site(site: Site, verdict: Verdict, steps: int) -> Site:
    """A declined match of the same rule at the same root, with `steps` matched steps."""
    return replace(site, verdict=verdict, steps=frozenset(sorted(site.steps, key=lambda v: v.serial)[:steps]))


@pytest.mark.parametrize("turned", [False, True], ids=["as found", "the other way round"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param((Fails("near"), 2), (Fails("far"), 1), id="the match that came further"),
        pytest.param((Unknown("near"), 1), (Fails("far"), 2), id="what is not known before what fails"),
    ],
)
def test_of_two_reasons_for_one_root_one_is_reported(
    site: Site, one: tuple[Verdict, int], other: tuple[Verdict, int], turned: bool
) -> None:
    sites = [refused_site(site, *one), refused_site(site, *other)]
    (told,) = choose_sites(reversed(sites) if turned else sites, everything)
    assert isinstance(told.verdict, (Fails, Unknown)) and told.verdict.why == "near"


def test_reasons_for_two_roots_are_both_reported_in_program_order(site: Site) -> None:
    earlier = replace(refused_site(site, Fails("earlier"), 1), root=min(site.steps, key=lambda v: v.serial))
    later = refused_site(site, Fails("later"), 1)
    assert [s.verdict.why for s in choose_sites([later, earlier], everything)] == ["earlier", "later"]  # type: ignore[union-attr]


def test_a_reason_is_not_reported_where_the_rule_is_applied(site: Site) -> None:
    assert choose_sites([refused_site(site, Fails("why"), 1), site], everything) == [replace(site, covers=())]


def test_a_site_that_is_not_usable_blocks_no_other(site: Site) -> None:
    other = replace(site, verdict=Holds("unsafe", "why"))
    acted = choose_sites([site, other], lambda s: s.verdict != Holds())
    assert [s.verdict for s in acted if s.verdict == other.verdict] == [other.verdict]


def test_overlapping_sites_are_not_both_replaced(site: Site) -> None:
    once = choose_sites([site, replace(site, steps=frozenset())], everything)
    assert len(once) == 1 and extent(once[0]) == extent(site)
