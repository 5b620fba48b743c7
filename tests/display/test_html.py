"""The page is self-contained, escaped, and readable in light and dark."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from autofuse.display.bars import BarChart, BarRow, Segment
from autofuse.display.charts import LineChart, StripChart
from autofuse.display.html import CodeBlock, Details, Figure, Section, drawn_part, page
from autofuse.results.table import Cell, Column, Table

TABLE = Table("sites", (Column("rule"),), ((Cell("AF101"),),))
DIFF = "--- model.py\n+++ model.py\n@@ -1,2 +1,2 @@\n same\n-if a < b:\n+if a > b:"
PARTS = (
    "A paragraph.",
    TABLE,
    LineChart("Loss", "step", "loss", {"eager": [2.0, 1.0], "optimized": [2.0, 1.0]}),
    StripChart("Step time", "ms", {"before": [2.0], "after": [1.0]}),
    CodeBlock(DIFF, is_diff=True),
    CodeBlock("print(1 < 2)"),
)
PAGE = page(
    "autofuse demo", "What was found.", [Section("All parts", PARTS)], [Figure("ratio", "1.5x", "30 pairs", "good")]
)

VOID = {"meta", "br", "hr", "img", "input", "link"}
URLS = {"href", "src", "srcset", "action", "poster", "data"}


class Checker(HTMLParser):
    """Collects tags that are not closed in order, and every attribute that could cause a request."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.seen: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.fetched += [name for name, value in attrs if name in URLS and not (value or "").startswith("#")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_every_tag_is_closed_in_order() -> None:
    checker = Checker(PAGE)
    assert not checker.wrong and not checker.open


def test_the_page_requests_nothing_from_the_network() -> None:
    checker = Checker(PAGE)
    assert not checker.fetched
    assert not {"link", "img", "iframe"} & set(checker.seen)
    assert checker.seen.count("script") == 1
    assert not re.search(r"url\(|@import|https?://", PAGE)


def test_the_policy_of_the_page_allows_its_own_script_and_nothing_else() -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', PAGE)
    (script,) = re.findall(r"<script>(.*?)</script>", PAGE, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ") and f"script-src 'sha256-{digest}'" in policy


def test_a_quantity_is_marked_with_the_number_to_sort_it_by() -> None:
    rows = tuple(
        (Cell(name), Cell(time)) for name, time in zip("abcd", ("2 ms", "900 µs", "n/a", "1.5 s"), strict=True)
    )
    drawn = drawn_part(Table("", (Column("layer"), Column("time", "right")), rows))
    assert re.findall(r'data-value="([^"]+)"', drawn) == ["0.002", "0.0009", "1.5"]
    assert "<table data-sorts>" in drawn


def test_the_page_has_a_light_and_a_dark_theme() -> None:
    assert "prefers-color-scheme: dark" in PAGE
    light, dark = re.findall(r"--paper: (#\w+)", PAGE)
    assert light != dark
    # Each colour that light defines has its counterpart in dark.
    names = re.findall(r"(--[\w-]+):", PAGE)
    assert all(names.count(name) == 2 for name in names)


def test_every_kind_of_part_is_drawn() -> None:
    tags = Checker(PAGE).seen
    assert tags.count("svg") == 2 and tags.count("table") == 1 and tags.count("pre") == 2
    assert "A paragraph." in PAGE and "1.5x" in PAGE and "30 pairs" in PAGE


def test_a_diff_marks_lines_but_not_its_head() -> None:
    assert '<span class="removed">-if a &lt; b:</span>' in PAGE
    assert '<span class="added">+if a &gt; b:</span>' in PAGE
    assert '<span class="place">@@' in PAGE
    assert PAGE.count('class="added"') == PAGE.count('class="removed"') == 1


def test_code_that_is_not_a_diff_stays_plain() -> None:
    assert "<code>print(1 &lt; 2)</code>" in PAGE


def test_passed_texts_never_become_markup() -> None:
    evil = "<script>alert(1)</script>"
    table = Table(evil, (Column(evil),), ((Cell(evil),),), evil)
    charts = (LineChart(evil, evil, evil, {evil: [1.0]}), StripChart(evil, evil, {evil: [1.0]}))
    parts = (evil, table, *charts, CodeBlock(evil), CodeBlock("+" + evil, is_diff=True))
    text = page(evil, evil, [Section(evil, parts)], [Figure(evil, evil, evil)])
    assert "<script>alert" not in text and text.count("<script") == 1


def test_a_closed_section_has_its_full_content() -> None:
    text = page("t", "s", [Section("h", (Details("more <here>", (TABLE, "last")),), "a note")])
    assert "<details><summary>more &lt;here&gt;</summary>" in text
    assert text.index("AF101") < text.index("<p>last</p></details>")
    assert '<p class="note">a note</p>' in text


def test_a_chart_with_kinds_has_a_legend_below_it() -> None:
    chart = BarChart("c", "d", (BarRow("a", "1", ((Segment(1.0, "part-0"),),)),), {"part-0": "forward & more"})
    text = page("t", "s", [Section("h", (chart,))])
    assert '<rect class="fill part-0"/></svg>forward &amp; more</li>' in text


def test_the_first_cell_of_a_row_is_its_heading() -> None:
    assert '<th scope="row" class="left plain">AF101</th>' in PAGE
    assert '<th scope="col" class="left">rule</th>' in PAGE


def test_the_same_content_gives_the_same_page() -> None:
    assert page("t", "s", [Section("h", PARTS)]) == page("t", "s", [Section("h", PARTS)])
