"""The side-by-side benchmark, at tiny sizes: every way has a row, and the page shows what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.__main__ import RESULTS, main
from benchmarks.peers.page import as_markdown, read_older

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("peers") / "peers.json"
    arguments = ["--models", "tiny-vit", "--ways", "eager", "Liger", "autofuse", "--seconds", "0", "--output"]
    assert main([*arguments, str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.slow
def test_a_way_that_runs_has_all_its_numbers(data: dict[str, Any]) -> None:
    found = data["models"]["tiny-vit"]
    ours = found["started"]["autofuse"]
    assert ours["places"] > 0 and ours["attention_kernels"] == 1 and ours["difference"] < 1e-5
    assert found["started"]["eager"]["attention_kernels"] == 0
    assert ours["first_step_cpu_seconds"] > 0 and ours["compiler_cpu_seconds"] >= 0 and ours["peak_bytes"] > 0
    low, high = found["timed"]["against_eager"]["autofuse"]["interval"]
    assert low <= found["timed"]["against_eager"]["autofuse"]["ratio"] <= high
    assert set(found["timed"]["seconds"]) == {"eager", "autofuse"} and found["timed"]["rounds"] >= 15


@pytest.mark.slow
def test_a_way_that_does_not_run_says_why(data: dict[str, Any]) -> None:
    reason = data["models"]["tiny-vit"]["started"]["Liger"]["absent"]
    assert reason in ("liger-kernel is not installed", "the model is not in its list of models")
    assert f"| Liger | did not run: {reason} |" in as_markdown(data)


@pytest.mark.slow
def test_autofuse_computes_every_lookalike_right(data: dict[str, Any]) -> None:
    assert set(data["lookalikes"]["autofuse"].values()) == {"right"}
    assert set(data["lookalikes"]["eager"].values()) == {"right"}


def test_an_unknown_model_is_named_with_those_that_exist(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    main(["--models", "nothing", "--ways", "eager", "--seconds", "0", "--output", str(file)])
    reason = json.loads(file.read_text())["models"]["nothing"]["started"]["eager"]["absent"]
    assert "No model is called nothing" in reason


def test_a_run_continues_where_it_was_interrupted_unless_a_version_changed(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    arguments = ["--models", "nothing", "--ways", "Liger", "--seconds", "0", "--output", str(file), "--resume"]
    main(arguments)
    old = json.loads(file.read_text())
    old["models"]["nothing"] = "measured"
    file.write_text(json.dumps(old))
    main(arguments)
    assert json.loads(file.read_text())["models"]["nothing"] == "measured"
    old["ways"]["Liger"]["version"] = "0.0"
    file.write_text(json.dumps(old))
    main(arguments)
    assert json.loads(file.read_text())["models"]["nothing"] != "measured"


@pytest.mark.skipif(not RESULTS.exists(), reason="the benchmark was not run yet")
def test_the_page_is_written_from_the_results() -> None:
    assert (REPOSITORY / "docs" / "peers.md").read_text() == as_markdown(
        json.loads(RESULTS.read_text()), read_older(RESULTS.parent)
    )
