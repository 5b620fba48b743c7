"""Tables as HTML fragments."""

from __future__ import annotations

from xml.dom.minidom import parseString

from autofuse.display.markup import TONES, table
from autofuse.results.table import Cell, Column, Table

COLUMNS = (Column("name"), Column("n", align="right"))


def test_a_fragment_is_well_formed_and_holds_everything() -> None:
    html = table(Table("title", COLUMNS, ((Cell("a"), Cell("1", "bad")),), "caption"))
    document = parseString(html)
    assert [cell.firstChild.data for cell in document.getElementsByTagName("td")] == ["a", "1"]
    assert "title" in html and "caption" in html and TONES["bad"] in html


def test_text_is_escaped_everywhere() -> None:
    html = table(Table("<t>", (Column("<c>"),), ((Cell("<d>"),),), "<e>"))
    parseString(html)
    assert all(f"&lt;{letter}&gt;" in html for letter in "tcde")


def test_no_title_and_no_caption_leave_no_empty_lines() -> None:
    assert table(Table("", COLUMNS, ())).count("<div") == 1
