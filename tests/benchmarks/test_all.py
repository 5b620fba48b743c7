"""One command runs every benchmark, and the README's table says what the results say."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.all import BENCHMARKS, BY_HAND, RESULTS, main, with_gains
from benchmarks.peers.page import as_markdown, read_older

REPOSITORY = Path(__file__).parents[2]
WAYS = ("autofuse", "torch.compile")
PEERS = json.loads((RESULTS / "peers.json").read_text())


def test_the_readmes_table_is_the_one_of_the_results() -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert with_gains(text, PEERS) == text
    assert all(f"| {name} |" in text for name in PEERS["models"])


def test_the_page_side_by_side_is_the_one_of_the_results() -> None:
    assert (REPOSITORY / "docs" / "peers.md").read_text() == as_markdown(PEERS, read_older(RESULTS))


def test_what_it_costs_is_what_was_measured() -> None:
    text = " ".join((REPOSITORY / "README.md").read_text().split())
    (row,) = (r for r in json.loads((RESULTS / "startup.json").read_text())["rows"] if r["size"] == "4x128")
    ours, theirs = ([round(row["processor"][f"{way} {kind}"]) for kind in ("cold", "warm")] for way in WAYS)
    assert f"costs {ours[0]} s of processor time at the first start and {ours[1]} s at the second" in text
    assert f"with `torch.compile` it costs {theirs[0]} s and {theirs[1]} s" in text
    measured = json.loads((RESULTS / "guards.json").read_text())["microseconds_a_call"].values()
    guards = [each["guards"] for each in measured]
    assert (round(min(guards)), round(max(guards))) == (1, 3) and "one to three microseconds" in text


def test_an_edited_number_is_noticed() -> None:
    text = (REPOSITORY / "README.md").read_text()
    number = f"{next(iter(PEERS['models'].values()))['timed']['against_eager']['autofuse']['ratio']:.2f}x"
    assert with_gains(text.replace(number, "99.00x"), PEERS) == text


def test_every_result_file_has_a_benchmark() -> None:
    written = {b.result for b in BENCHMARKS.values()} | set(BY_HAND)
    assert {f.name for f in RESULTS.glob("*.json")} <= written


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_exists_with_its_options(name: str) -> None:
    each = BENCHMARKS[name]
    spec = importlib.util.find_spec(f"benchmarks.{each.module}")
    assert spec and spec.origin
    file = Path(spec.origin)
    text = (file.with_name("__main__.py") if file.name == "__init__.py" else file).read_text()
    options = [o for o in (*each.options, each.output) if o.startswith("--")]
    assert [o for o in options if f'"{o}"' not in text] == []


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(BENCHMARKS)


@pytest.mark.night
def test_a_benchmark_runs_and_its_result_is_written(tmp_path: Path) -> None:
    command = [*BENCHMARKS["imports"].command()[:-1], str(tmp_path / "imports.json"), "--rounds", "1"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    assert json.loads((tmp_path / "imports.json").read_text())["benchmark"] == "imports"
    assert sys.executable == command[0]
