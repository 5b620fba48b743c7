"""The page of a profile: what it says, and, where a Chromium is at hand, how it looks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autofuse.display.profile_page import html, html_of_both
from autofuse.results.ladder import RUNGS
from tests.display.browser import Browser, executable
from tests.display.samples import almost_nothing, comparison, gpt, large, trace_of_a_job

DIFF = "--- gpt.py\n+++ gpt.py\n@@ -1 +1 @@\n-scores = q @ k\n+attention(q, k, v)"
PAGES = {
    "one": html(gpt()),
    "both": html_of_both(gpt(), gpt(True), comparison(), DIFF),
    "job": html(trace_of_a_job()),
    "nothing": html(almost_nothing()),
    "large": html(large(12)),
}
# What stands outside of its drawing, what overlaps, what is too pale, what makes the page scroll sideways.
LOOK = """(() => {
  for (const folded of document.querySelectorAll('details')) folded.open = true;
  const visible = e => e.getClientRects().length && e.getBoundingClientRect().width > 0;
  const outside = [], overlapping = [], pale = [];
  let texts = 0;
  for (const svg of document.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect();
    const written = [...svg.querySelectorAll('text')].filter(visible);
    const boxes = written.map(e => [e.textContent, e.getBoundingClientRect()]);
    texts += boxes.length;
    for (const [text, b] of boxes)
      if (b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1 || b.bottom > frame.bottom + 3)
        outside.push(text);
    for (const dot of [...svg.querySelectorAll('circle.dot')].filter(visible).map(e => e.getBoundingClientRect()))
      for (const [text, b] of boxes)
        if (Math.min(dot.right, b.right) - Math.max(dot.left, b.left) > 2 &&
            Math.min(dot.bottom, b.bottom) - Math.max(dot.top, b.top) > 3) overlapping.push([text, 'a dot']);
    for (let i = 0; i < boxes.length; i++)
      for (let j = i + 1; j < boxes.length; j++) {
        const [a, b] = [boxes[i][1], boxes[j][1]];
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) overlapping.push([boxes[i][0], boxes[j][0]]);
      }
  }
  const light = colour => {
    const linear = v => v > .03928 ? ((v + .055) / 1.055) ** 2.4 : v / 12.92;
    const c = colour.match(/[\\d.]+/g).slice(0, 3).map(v => linear(v / 255));
    return .2126 * c[0] + .7152 * c[1] + .0722 * c[2];
  };
  const below = e => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!/^rgba\\(0, 0, 0, 0\\)$/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  for (const e of document.body.querySelectorAll('*')) {
    const drawn = e.tagName === 'text';
    if (!visible(e) || !drawn && ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    if (!drawn && e.closest('svg')) continue;
    const style = getComputedStyle(e), [a, b] = [light(drawn ? style.fill : style.color), light(below(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) pale.push([e.textContent.slice(0, 40), ratio]);
  }
  return {outside, overlapping, pale, texts, paper: getComputedStyle(document.body).backgroundColor,
          sideways: document.documentElement.scrollWidth - document.documentElement.clientWidth};
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = executable()
    if path is None:
        pytest.skip("no chromium or google-chrome on PATH")
    with Browser(path) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pages")
    for name, text in PAGES.items():
        (made / f"{name}.html").write_text(text, encoding="utf-8")
    return made


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
@pytest.mark.parametrize("name", PAGES)
def test_in_a_browser_it_is_whole_quiet_and_legible(
    browser: Browser, folder: Path, name: str, width: int, dark: bool
) -> None:
    seen, wrong = browser.looked_at(folder / f"{name}.html", LOOK, width, dark)
    assert wrong == []
    assert seen["sideways"] <= 0
    assert seen["texts"] > 10
    found: dict[str, Any] = {key: seen[key] for key in ("outside", "overlapping", "pale")}
    assert found == {"outside": [], "overlapping": [], "pale": []}
    assert (sum(map(int, re.findall(r"\d+", seen["paper"]))) < 200) is dark


def test_the_look_finds_what_it_looks_for(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<body style='background:#fff'><p style='color:#999;width:2000px'>pale and wide</p>"
        "<svg width='100' height='50'><text x='0' y='20'>here</text><text x='4' y='22'>there</text>"
        "<text x='90' y='40'>beyond</text></svg><script>console.log('noise')</script><img src='gone.png'>"
    )
    seen, wrong = browser.looked_at(page, LOOK, 360, False)
    assert seen["sideways"] > 1000 and seen["outside"] == ["beyond"] and seen["overlapping"] == [["here", "there"]]
    assert [text for text, _ in seen["pale"]] == ["pale and wide"]
    assert any("noise" in told for told in wrong) and any("gone.png" in told for told in wrong)


@pytest.mark.parametrize("name", PAGES)
def test_it_holds_no_script_and_asks_nobody_for_anything(name: str) -> None:
    assert not re.search(r"<script|<link|<img|<iframe|url\(|@import|src=|href=|https?://", PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_every_rung_is_there_in_order_with_its_formula(name: str) -> None:
    text = PAGES[name].replace("&#39;", "'").replace("&#34;", '"')
    places = [text.index(f'<th scope="row" class="left wraps plain">{kind.title}</th>') for kind in RUNGS]
    assert places == sorted(places)
    assert all(kind.formula in text and kind.source in text for kind in RUNGS)


def test_what_cannot_be_told_says_why_and_how_to_get_it() -> None:
    text = PAGES["nothing"].replace("&#39;", "'")
    assert all(f"n/a, because there is no kernel in it; to get it, {kind.get}" in text for kind in RUNGS)
    assert "no step was timed" in text
    assert "Memory</h2>" not in text and "layer by layer" not in text


def test_every_layer_is_there_and_the_long_list_is_folded_away() -> None:
    shown, _, folded = PAGES["one"].partition("Every layer, all 40 by name")
    assert "h.2.attn.c_attn" not in shown and "h.*.attn.c_attn ×4" in shown
    assert all(f"h.{i}.attn.c_attn" in folded for i in range(4))


def test_two_profiles_stand_side_by_side_with_verdict_and_diff() -> None:
    text = PAGES["both"]
    assert "1.75x" in text and "confirmed" in text and ">100 ms → 28.4 ms<" in text
    assert '<span class="added">+attention(q, k, v)</span>' in text
    assert text.count("AF101 fused") >= 2 and "AF101 applies" in text


def test_names_and_notes_never_become_markup() -> None:
    evil = "<script>alert(1)</script>"
    layers = tuple(replace(layer, fqn=f"{evil}.{layer.fqn}", kind=evil) for layer in gpt().layers)
    spans = tuple(replace(span, lane=evil, name=evil) for span in gpt().timeline)
    profile = replace(gpt(), name=evil, layers=layers, notes=(evil,), timeline=spans, environment={evil: evil})
    assert "<script" not in html(profile) + html_of_both(profile, profile, None, evil)


def test_a_loss_that_is_no_number_and_a_step_that_takes_no_time_are_drawn_as_far_as_they_go() -> None:
    assert "The loss" in html(replace(gpt(), losses=(2.0, math.nan, 1.0)))
    assert "The loss</h2>" not in html(replace(gpt(), losses=(math.nan,)))
    nothing = replace(gpt().timing, seconds=(0.0,))
    assert "Step times" in html(replace(gpt(), timing=nothing, shares=()))
