"""The matrix of versions: its rows, how a row is judged, and the page."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from autofuse.results.distribution import OLDEST_TORCH
from tools.matrix.__main__ import main
from tools.matrix.cells import Cell, Result, merge, read_cells, results_as_json, results_from_json
from tools.matrix.environments import constraints_of
from tools.matrix.page import as_markdown
from tools.matrix.running import how_far, read_report
from tools.matrix.smoke import losses_of

REPOSITORY = Path(__file__).parents[2]
EQUAL = {"equal": True, "fused": ["AF101"], "first": 0.0, "worst": 1e-6, "compiled": True}
CELL = Cell("3.11", "2.13.0")


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def test_the_oldest_supported_torch_and_the_pinned_one_are_rows() -> None:
    versions = [_numbers(c.torch) for c in read_cells()]
    pinned = next(x for x in (REPOSITORY / "constraints.txt").read_text().splitlines() if x.startswith("torch=="))
    assert min(versions) == OLDEST_TORCH
    assert _numbers(pinned.partition("==")[2]) in versions


@pytest.mark.parametrize(("torch", "old"), [("2.9.1", True), ("2.11.0", True), ("2.12.0", False), ("2.14.1", False)])
def test_the_interpreter_of_an_old_triton_gets_an_old_numpy(torch: str, old: bool) -> None:
    numpy = [x for x in constraints_of(Cell("3.11", torch)) if x.startswith("numpy")]
    assert len(numpy) == 1 and (numpy == ["numpy<2.4"]) is old
    assert not [x for x in constraints_of(CELL) if x.startswith(("torch==", "triton=="))]


def test_ci_runs_the_oldest_the_newest_and_one_between() -> None:
    versions = sorted({_numbers(c.torch) for c in read_cells()})
    in_ci = sorted({_numbers(c.torch) for c in read_cells() if c.ci})
    assert in_ci[0] == versions[0] and in_ci[-1] == versions[-1] and len(in_ci) >= 3


def test_every_python_of_a_row_is_a_classifier() -> None:
    classifiers = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["classifiers"]
    for cell in read_cells():
        assert f"Programming Language :: Python :: {cell.python}" in classifiers


def test_a_report_of_pytest_is_counted() -> None:
    xml = """<testsuites><testsuite><testcase classname="a" name="one"/><testcase classname="a" name="two"><failure/>
    </testcase><testcase classname="a" name="three"><skipped/></testcase><testcase classname="a" name="four"><error/>
    </testcase></testsuite></testsuites>"""
    assert read_report(xml) == (1, 1, ("a::two", "a::four"))


def test_tests_that_were_stopped_say_how_far_they_came() -> None:
    output = b"....s... [ 10%]\n..F..E.. [ 20%]\n..F"
    assert how_far(output) == "20 % done, 3 failed until then"
    assert how_far(b"") == "0 % done, 0 failed until then"


@pytest.mark.parametrize(
    ("result", "holds"),
    [
        (Result(CELL, passed=10, smoke=EQUAL), True),
        (Result(CELL, passed=0, smoke=EQUAL), False),
        (Result(CELL, passed=10, failed=("a::b",), smoke=EQUAL), False),
        (Result(CELL, passed=10, smoke={**EQUAL, "equal": False}), False),
        (Result(CELL, passed=10, smoke=None, smoke_error="ImportError"), False),
        (Result(CELL, absent="no python3.11 is on the PATH"), False),
    ],
)
def test_a_row_holds_if_tests_pass_and_the_training_is_equal(result: Result, holds: bool) -> None:
    assert result.holds is holds


def test_the_page_names_what_failed_and_what_was_not_tested() -> None:
    page = as_markdown(
        [
            Result(CELL, torch="2.13.0+cpu", passed=10, failed=("tests.a::b",), smoke=EQUAL),
            Result(Cell("3.14", "2.13.0"), absent="no python3.14 is on the PATH"),
        ]
    )
    assert "| 3.11 | 2.13.0+cpu | 10 | 0 | 1 | equal | 1.0e-06 |" in page
    assert "`tests.a::b`" in page
    assert "not tested: no python3.14 is on the PATH" in page
    assert "| 3.11 | 2.9.1 | not run yet | | | equal | 1.0e-06 |" in as_markdown(
        [Result(CELL, torch="2.9.1", smoke=EQUAL)]
    )


def test_results_are_json() -> None:
    data = json.loads(results_as_json([Result(CELL, passed=1, smoke=EQUAL)]))
    assert data["results"][0]["cell"] == {"python": "3.11", "torch": "2.13.0", "ci": False}


def test_results_are_read_back_and_only_rows_that_ran_again_change() -> None:
    other = Cell("3.12", "2.13.0")
    old = results_from_json(results_as_json([Result(CELL, passed=1, failed=("a::b",)), Result(other, passed=2)]))
    assert old[0].failed == ("a::b",) and old[1].cell == other
    assert [r.passed for r in merge(old, [Result(CELL, passed=9)], [other, CELL])] == [2, 9]


def test_the_page_is_the_one_of_the_results() -> None:
    results = results_from_json((REPOSITORY / "benchmarks" / "results" / "versions.json").read_text())
    assert (REPOSITORY / "docs" / "versions.md").read_text() == as_markdown(results)
    assert {r.cell for r in results} <= set(read_cells())


def test_only_versions_of_python_without_a_failure_are_classifiers() -> None:
    results = results_from_json((REPOSITORY / "benchmarks" / "results" / "versions.json").read_text())
    classifiers = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["classifiers"]
    claimed = {c.rpartition(" ")[2] for c in classifiers if c.startswith("Programming Language :: Python :: 3.")}
    assert claimed == {r.cell.python for r in results if r.training_is_equal and not r.failed}


def test_an_unknown_row_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(tmp_path), "--only", "3.11/1.0"]) == 2
    assert "No row is called 3.11/1.0" in capsys.readouterr().err


def test_the_training_returns_a_loss_for_each_step() -> None:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7))
    batches = [(torch.randint(0, 7, (2, 3)), torch.randint(0, 7, (2, 3)))] * 3
    losses = losses_of(model, batches)
    assert len(losses) == 3 and losses[-1] < losses[0]
