"""The tables of the whole step: every number with its name, for one profile or two."""

from __future__ import annotations

from dataclasses import replace

from autofuse.display import profile_tables as tables
from autofuse.results.collective_rate import CollectiveRate
from autofuse.results.ladder import LEVELS, Level
from autofuse.results.table import Table
from tests.display.samples import almost_nothing, gpt, trace_of_a_job

BOTH = {"before": gpt(), "after": gpt(True)}


def rows(table: Table) -> dict[str, list[str]]:
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_the_ladder_has_every_level_in_order_with_value_loss_and_origin() -> None:
    table = tables.ladder_table({"": gpt()})
    assert [row[0].text for row in table.rows] == [kind.title for kind in LEVELS]
    assert rows(table)["busy time"] == ["94.1 %", "5.9 %", "operators of 3 steps of the trace"]
    assert rows(table)["SM activity"][:2] == ["n/a", ""]


def test_a_missing_value_has_its_reason_and_advice_once() -> None:
    assert (
        tables.missing_in_words("there is no GPU.", "find one") == "n/a, because there is no GPU; to get it, find one"
    )
    assert tables.missing_in_words("", "find one") == "n/a; to get it, find one"
    assert tables.missing_in_words("none; find one", "find one") == "n/a, because none; find one"


def test_a_missing_level_and_a_level_of_a_later_version_are_shown() -> None:
    newer = replace(gpt(), ladder=(*gpt().ladder, Level("tma_active", 0.5)))
    found = rows(tables.ladder_table({"before": gpt(), "after": newer}))
    assert found["tma_active"][:4] == ["n/a", "", "50 %", ""]


def test_the_text_of_a_loss_names_its_level() -> None:
    words = {levels["before"].name: tables.loss_in_words(levels) for levels in tables.levels_of(BOTH)}
    assert words["busy"] == "5.9 % → 5.9 % of the step lost"
    assert words["hfu"] == "77 % → 66.7 % below busy time"
    assert words["mfu"] == "0 % → 0 % below HFU"
    assert words["occupancy"] == ""


def test_overlapping_shares_come_last_with_their_reasons() -> None:
    table = rows(tables.shares_table({"": gpt()}))
    assert list(table)[-3:] == ["host overhead", "communication", "exposed communication"]
    assert table["forward"] == ["78.7 ms", "31 %", "ranges of the trace"]
    assert table["communication"] == ["n/a", "n/a", "there is one process only"]


def test_memory_adds_up_and_is_omitted_if_it_was_not_measured() -> None:
    table = rows(tables.memory_table(BOTH))
    assert table["activations"] == ["180 MiB", "89.1 %", "60 MiB", "73.2 %"]
    assert table["together"] == ["202 MiB", "", "82 MiB", ""]
    nothing = rows(tables.memory_table({"": almost_nothing()}))
    assert set(nothing["parameters"] + nothing["together"]) == {"n/a", ""}


def test_categories_of_both_sides_are_shown_with_the_longest_first() -> None:
    table = rows(tables.categories_table(BOTH))
    assert list(table) == ["matmul", "elementwise", "softmax", "attention"]
    assert table["attention"][:4] == ["0", "0 s", "12", "20 ms"]


def test_the_slowest_rank_is_named() -> None:
    table = rows(tables.ranks_table(trace_of_a_job()))
    assert table["0"] == ["100 ms", "99 %", "20 ms", "5 ms", "n/a", ""]
    assert [name for name, cells in table.items() if cells[-1] == "slowest"] == ["3"]


def test_an_upper_bound_is_marked_as_such() -> None:
    assert tables.value_of(Level("occupancy", 0.45, at_most=True)) == "≤ 45 %"
    assert tables.value_of(Level("occupancy", 0.45)) == "45 %"
    assert tables.value_of(Level("occupancy", None, at_most=True)) == "n/a"


def test_the_waits_of_a_collective_name_the_ranks_only_if_all_take_part() -> None:
    rate = CollectiveRate("all_reduce", 4, 2.0, 1024, 1e-3, None, None, waiting=(0.0, 2e-3, 1e-3, 0.0))
    profile = replace(
        trace_of_a_job(), collectives=(rate, replace(rate, waiting=(0.0, 1e-3)), replace(rate, waiting=()))
    )
    table = tables.collectives_table(profile)
    assert [column.name for column in table.columns][-2:] == ["least wait", "longest wait"]
    assert [[cell.text for cell in row[-2:]] for row in table.rows] == [
        ["0 s, rank 0", "2 ms, rank 1"], ["0 s", "1 ms"], ["", ""],
    ]  # fmt: skip


def test_a_rank_shows_its_known_activities() -> None:
    ranks = tuple(replace(rank, computing=0.05, host=0.01) for rank in trace_of_a_job().ranks)
    names = [column.name for column in tables.ranks_table(replace(trace_of_a_job(), ranks=ranks)).columns]
    assert "computes" in names and "waits for the host" in names and "waits for data" not in names
    assert "computes" not in [column.name for column in tables.ranks_table(trace_of_a_job()).columns]
