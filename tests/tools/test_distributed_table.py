"""The distributed matrix as a page, on made-up results. The rows themselves run in tests/fx/test_distributed.py."""

from __future__ import annotations

import json

import pytest

from tools.distributed.__main__ import main
from tools.distributed.matrix import RANKS, rows_of
from tools.distributed.result import Result
from tools.distributed.table import as_json, as_markdown

GOOD = Result(
    0, "DDP", "before", 2, "cpu", sites={"AF101": 2}, seen={"attention": 2}, difference=4.8e-7, allowed=1.8e-6
)
BAD = Result(1, "FSDP1, CPUOffload", "after", 2, "cpu", "unavailable", "torch itself requires an accelerator here")


def test_a_row_tells_what_was_fused_what_ran_and_how_far_losses_lie_apart() -> None:
    page = as_markdown([GOOD, BAD])
    assert "| DDP | before | AF101 2 | attention 2 | 4.8e-07 | 1.8e-06 | equal |" in page
    assert "2 rows, 1 equal, 1 unavailable" in page


def test_what_does_not_run_stands_there_with_its_reason() -> None:
    assert "**FSDP1, CPUOffload, after**: torch itself requires an accelerator here" in as_markdown([GOOD, BAD])


def test_json_has_every_row_and_the_versions() -> None:
    read = json.loads(as_json([GOOD]))
    assert read["rows"][0]["name"] == "DDP" and set(read["versions"]) == {"autofuse", "torch"}


def test_rows_are_named_once_and_listed_without_being_run(capsys: pytest.CaptureFixture[str]) -> None:
    names = [(way.name, order) for ranks in RANKS for way, order in rows_of(ranks)]
    assert len(names) == len(set(names))
    assert main(["--list", "--only", "static_graph"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 ranks: DDP, static_graph, before", "2 ranks: DDP, static_graph, after"
    ]  # fmt: skip
