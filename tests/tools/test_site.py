"""The documentation site: every page is in its navigation, every anchor exists, rule pages show executed examples."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autofuse.loading.registry import load_rules
from tools.site.rule_pages import rule_page

REPOSITORY = Path(__file__).parents[2]
PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]
GENERATED = {"changelog.md", "contributing.md", "security.md", "benchmarks.md"}


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without executing its tags."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
SETTINGS = yaml.load((REPOSITORY / "mkdocs.yml").read_text(), _Loader)


def _pages_in_navigation(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list):
        for item in nav:
            yield from _pages_in_navigation(item)
    else:
        for title, value in nav.items():
            if not title.startswith("@"):
                yield from _pages_in_navigation(value)


def _slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {_slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def test_every_page_is_in_the_navigation() -> None:
    decisions = {f"decisions/{p.name}" for p in (REPOSITORY / "docs/decisions").glob("*.md")}
    pages = {p.relative_to(REPOSITORY / "docs").as_posix() for p in (REPOSITORY / "docs").rglob("*.md")}
    assert pages - (decisions - {"decisions/README.md"}) | GENERATED == set(_pages_in_navigation(SETTINGS["nav"]))


def test_the_site_asks_no_other_host_for_fonts() -> None:
    assert SETTINGS["theme"]["font"] is False
    assert SETTINGS["strict"] is True


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_every_anchor_of_a_link_is_a_heading(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)", page.read_text())
    broken = [
        f"{target}#{anchor}"
        for target, anchor in links
        if (file := page.parent / target if target else page).suffix == ".md" and anchor not in _anchors(file)
    ]
    assert broken == []


@pytest.mark.parametrize("loaded", load_rules(), ids=lambda r: r.rule.__name__)
def test_the_page_of_a_rule_has_its_pattern_and_its_examples(loaded: Any) -> None:
    page = rule_page(loaded)
    assert page.startswith(f"# {loaded.rule.code} {loaded.rule.__name__}\n")
    assert page.count("**") // 2 >= len(loaded.rule.examples)
    assert page.count("```") % 2 == 0


def test_the_examples_of_a_rule_page_are_rewritten_when_the_page_is_made() -> None:
    (attention,) = [r for r in load_rules() if r.rule.code == "AF101"]
    page = rule_page(attention)
    assert "```diff\n" in page and "\n+" in page and "scaled_dot_product_attention(" in page


@pytest.mark.night
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed")
def test_the_site_builds_with_strict_links(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "rules" / "AF101" / "index.html").exists()
    pages = [p.read_text() for p in tmp_path.rglob("*.html")]
    assert not any(re.search(r"<(?:script|img|link)[^>]+(?:src|href)=\"?https?://", page) for page in pages)
