"""Tables as data."""

from __future__ import annotations

import pytest

from autofuse.results.table import Cell, Column, Table, without_empty_columns

COLUMNS = (Column("one"), Column("two"), Column("three"))


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="3 columns and a row of 1"):
        Table("sizes", COLUMNS, ((Cell("a"),),))


def test_only_columns_that_are_empty_in_every_row_are_removed() -> None:
    rows = ((Cell("a"), Cell(""), Cell("")), (Cell("b"), Cell(""), Cell("c")))
    table = without_empty_columns(Table("", COLUMNS, rows, "below"))
    assert [column.name for column in table.columns] == ["one", "three"]
    assert [[cell.text for cell in row] for row in table.rows] == [["a", ""], ["b", "c"]]
    assert table.caption == "below"


def test_a_table_without_rows_keeps_its_columns() -> None:
    assert without_empty_columns(Table("", COLUMNS, ())).columns == COLUMNS
