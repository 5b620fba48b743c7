"""The page of a profile: its content and, if a Chromium is installed, its layout."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autofuse.display.profile_page import html, html_of_both
from autofuse.results.diagnosis import Action, Diagnosis
from autofuse.results.ladder import LEVELS
from tests.display.browser import Browser, executable
from tests.display.samples import almost_nothing, comparison, gpt, large, rank_steps, trace_of_a_job

DIFF = "--- gpt.py\n+++ gpt.py\n@@ -1 +1 @@\n-scores = q @ k\n+attention(q, k, v)"
DIAGNOSIS = Diagnosis(
    "data", "Waiting for data: half of the step waits for the loader.",
    (Action("loader-workers", "Use more workers: DataLoader(..., num_workers=8).", 120.0, "127 ms of 254 ms", "high"),),
)  # fmt: skip
PAGES = {
    "one": html(gpt()),
    "both": html_of_both(gpt(), gpt(True), comparison(), DIFF),
    "job": html(replace(trace_of_a_job(), rank_steps=rank_steps())),
    "nothing": html(almost_nothing()),
    "large": html(large(12)),
}
# Finds elements outside of their drawing, overlapping texts, low contrast, and elements wider than the page.
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
def test_a_browser_shows_the_page_completely_legibly_and_without_errors(
    browser: Browser, folder: Path, name: str, width: int, dark: bool
) -> None:
    seen, wrong = browser.looked_at(folder / f"{name}.html", LOOK, width, dark)
    assert wrong == []
    assert seen["sideways"] <= 0
    assert seen["texts"] >= (2 if name == "nothing" else 10)
    found: dict[str, Any] = {key: seen[key] for key in ("outside", "overlapping", "pale")}
    assert found == {"outside": [], "overlapping": [], "pale": []}
    assert (sum(map(int, re.findall(r"\d+", seen["paper"]))) < 200) is dark


def test_the_layout_check_finds_every_kind_of_fault(browser: Browser, tmp_path: Path) -> None:
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
def test_the_page_has_one_inline_script_and_requests_nothing(name: str) -> None:
    assert PAGES[name].count("<script>") == PAGES[name].count("<script") == 1
    assert not re.search(r"<link|<img|<iframe|url\(|@import|src=|href=\"[^#]|https?://|fetch\(|XMLHttp", PAGES[name])


def test_the_order_is_verdict_actions_figures_evidence() -> None:
    text = html(replace(gpt(), diagnosis=DIAGNOSIS))
    wanted = ["half of the step waits", "What to do", "Use more workers", '<dl class="figures">', "Where the step goes"]
    wanted += ["The time of each layer</h2>", "Where fusing helps</h2>", "One step as it ran</h2>", "How these numbers"]
    places = [text.index(part) for part in wanted]
    assert places == sorted(places)


def test_the_diagnosis_is_on_the_first_screen_of_a_phone(browser: Browser, folder: Path) -> None:
    page = folder / "diagnosis.html"
    page.write_text(html(replace(gpt(), diagnosis=DIAGNOSIS)), encoding="utf-8")
    end, wrong = browser.looked_at(
        page, "document.querySelector('.verdict').getBoundingClientRect().bottom", 360, False
    )
    assert wrong == [] and 0 < end < 640


@pytest.mark.parametrize("name", PAGES)
def test_on_paper_nothing_is_wider_than_the_page(browser: Browser, folder: Path, name: str) -> None:
    wide = """(() => {
      for (const folded of document.querySelectorAll('details')) folded.open = true;
      const right = document.documentElement.clientWidth + 1;
      return [getComputedStyle(document.body).backgroundColor, [...document.querySelectorAll('table, svg, p')]
        .filter(e => e.getBoundingClientRect().right > right).map(e => e.textContent.slice(0, 60))];
    })()"""
    (paper, found), _ = browser.looked_at(folder / f"{name}.html", wide, 1000, True, "print")
    assert paper == "rgb(255, 255, 255)" and found == []


def test_the_layers_are_sorted_and_filtered(browser: Browser, folder: Path) -> None:
    script = """(() => {
      const table = [...document.querySelectorAll('table[data-filters]')][0];
      const names = () => [...table.tBodies[0].rows].filter(r => !r.hidden).map(r => r.cells[0].textContent);
      const column = [...table.tHead.rows[0].cells].findIndex(c => c.textContent === 'forward');
      const button = table.tHead.rows[0].cells[column].querySelector('button');
      const values = () => [...table.tBodies[0].rows].map(r => Number(r.cells[column].dataset.value));
      const found = {before: names()};
      button.click();
      found.descending = values(); found.sort = table.tHead.rows[0].cells[column].ariaSort;
      button.click();
      found.ascending = values();
      button.click();
      found.again = names();
      const input = document.querySelector('.filter input');
      input.value = 'attn AF101'; input.dispatchEvent(new Event('input'));
      found.filtered = names(); found.status = document.querySelector('.filter [role=status]').textContent;
      return found;
    })()"""
    seen, wrong = browser.looked_at(folder / "one.html", script, 1000, False)
    assert wrong == []
    assert seen["descending"] == sorted(seen["descending"], reverse=True) and seen["sort"] == "descending"
    assert seen["ascending"] == sorted(seen["ascending"]) and len(set(seen["ascending"])) > 3
    assert seen["again"] == seen["before"]
    assert seen["filtered"] == ["h.*.attn ×4"] and seen["status"] == f"1 of {len(seen['before'])} rows"


def test_the_icicle_opens_by_click_and_keyboard(browser: Browser, folder: Path) -> None:
    script = """(() => {
      const frame = document.querySelector('.icicle');
      const button = name => [...frame.querySelectorAll('button')].find(b => b.ariaLabel.startsWith(name + ':'));
      const width = name => button(name).getBoundingClientRect().width;
      const press = key => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
      const found = {whole: frame.getBoundingClientRect().width, before: width('h.*.mlp')};
      button('h.*.mlp').click();
      found.opened = width('h.*.mlp'); found.hidden = width('lm_head');
      button('h.*.mlp').focus(); press('ArrowUp');
      found.above = document.activeElement.ariaLabel; press('Escape');
      found.after = width('h.*.mlp'); press('ArrowDown');
      found.below = document.activeElement.ariaLabel;
      return found;
    })()"""
    seen, wrong = browser.looked_at(folder / "one.html", script, 1000, False)
    assert wrong == []
    assert seen["before"] == seen["after"] < seen["opened"] and seen["opened"] > 0.98 * seen["whole"]
    assert seen["hidden"] == 0
    assert seen["above"].startswith("h.*:") and seen["below"].startswith("h.*.attn:")


def test_the_timeline_zooms_and_its_labels_stay_visible(browser: Browser, folder: Path) -> None:
    script = """(() => {
      const frame = document.querySelector('[data-zooms]'), drawing = frame.querySelector('svg');
      const width = () => Math.round(drawing.getBoundingClientRect().width / frame.clientWidth);
      const found = [width()];
      [...document.querySelectorAll('.zoom button')].find(b => b.textContent === 'Zoom in').click();
      found.push(width());
      frame.dispatchEvent(new KeyboardEvent('keydown', {key: '+', bubbles: true}));
      found.push(width());
      const label = drawing.querySelector('text.label').getBoundingClientRect().left;
      const seen = label >= frame.getBoundingClientRect().left - 1;
      frame.dispatchEvent(new KeyboardEvent('keydown', {key: '0', bubbles: true}));
      return [...found, width(), seen, frame.scrollLeft];
    })()"""
    seen, wrong = browser.looked_at(folder / "one.html", script, 1000, False)
    assert wrong == [] and seen == [1, 2, 4, 1, True, 0]


@pytest.mark.parametrize("name", PAGES)
def test_every_control_and_drawing_has_a_name_and_every_table_headings(
    browser: Browser, folder: Path, name: str
) -> None:
    script = """(() => {
      const named = e => e.ariaLabel || e.textContent.trim() || e.labels?.length;
      const nameless = [...document.querySelectorAll('button, input, a, summary, [role=region], [role=group], svg')]
        .filter(e => !e.closest('[aria-hidden=true]') && !e.ariaHidden && !named(e));
      const bare = [...document.querySelectorAll('table')].filter(t => !t.querySelector('th[scope=col]'));
      const levels = [...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]));
      const jumps = levels.filter((level, i) => i && level > levels[i - 1] + 1);
      const language = document.documentElement.lang;
      return [nameless.map(e => e.outerHTML.slice(0, 80)), bare.length, jumps, levels[0], language];
    })()"""
    seen, _ = browser.looked_at(folder / f"{name}.html", script, 1000, False)
    assert seen == [[], 0, [], 1, "en"]


@pytest.mark.parametrize("name", PAGES)
def test_every_level_is_shown_in_order_with_its_formula(name: str) -> None:
    text = PAGES[name].replace("&#39;", "'").replace("&#34;", '"')
    places = [text.index(f'<th scope="row" class="left wraps plain">{kind.title}</th>') for kind in LEVELS]
    assert places == sorted(places)
    assert all(kind.formula in text and kind.source in text for kind in LEVELS)


def test_an_unknown_value_has_a_reason_and_advice() -> None:
    text = PAGES["nothing"].replace("&#39;", "'")
    assert all(f"n/a, because there is no kernel in it; to get it, {kind.get}" in text for kind in LEVELS)
    assert "no step was timed" in text
    assert "Memory</h2>" not in text and "The time of each layer" not in text


def test_every_layer_is_shown_and_the_long_list_is_closed() -> None:
    shown, _, folded = PAGES["one"].partition("Every layer, all 40 by name")
    assert "h.2.attn.c_attn" not in shown and "h.*.attn.c_attn ×4" in shown
    assert all(f"h.{i}.attn.c_attn" in folded for i in range(4))


def test_two_profiles_are_shown_side_by_side_with_verdict_and_diff() -> None:
    text = PAGES["both"]
    assert "1.75x" in text and "confirmed" in text and ">100 ms → 28.4 ms<" in text
    assert '<span class="added">+attention(q, k, v)</span>' in text
    assert text.count("AF101 fused") >= 2 and "AF101 applies" in text


def test_names_and_notes_never_become_markup() -> None:
    evil = "<script>alert(1)</script>"
    layers = tuple(replace(layer, fqn=f"{evil}.{layer.fqn}", kind=evil) for layer in gpt().layers)
    spans = tuple(replace(span, lane=evil, name=evil) for span in gpt().timeline)
    profile = replace(gpt(), name=evil, layers=layers, notes=(evil,), timeline=spans, environment={evil: evil})
    assert "alert(1)</" not in html(profile) + html_of_both(profile, profile, None, evil)


def test_a_nan_loss_and_a_step_without_time_can_be_drawn() -> None:
    assert "The loss" in html(replace(gpt(), losses=(2.0, math.nan, 1.0)))
    assert "The loss</h2>" not in html(replace(gpt(), losses=(math.nan,)))
    nothing = replace(gpt().timing, seconds=(0.0,))
    assert "Step times" in html(replace(gpt(), timing=nothing, shares=()))


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("confirmed", "takes less time after the change: 1.75x (1.60 to 1.81) as fast"),
        ("regressed", "takes more time after the change"),
        ("no-change", "takes as long as before"),
        ("inconclusive", "does not show whether"),
    ],
)
def test_two_profiles_start_with_the_verdict_in_a_sentence(verdict: str, words: str) -> None:
    text = html_of_both(gpt(), gpt(True), replace(comparison(), verdict=verdict))
    assert text.index(words) < text.index('<dl class="figures">')
