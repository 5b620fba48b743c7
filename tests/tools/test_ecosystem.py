"""The ecosystem run, with a made-up package: one rewritten class can be built, and one cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tools.ecosystem.__main__ import main
from tools.ecosystem.rewriting import check_files
from tools.ecosystem.running import run_both
from tools.ecosystem.sources import Tree, folders
from tools.ecosystem.truth import score_labels

MODEL = """\
import torch
from torch import nn

import a_library_that_is_not_installed


class Attention(nn.Module):
    def __init__(self, dim, heads=8):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, mask=None):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        # one row for each query
        scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5)
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


class Unbuildable(nn.Module):
    def __init__(self, secret):
        super().__init__()
        self.secret = secret.open()

    def forward(self, x):
        return x * torch.sigmoid(x)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "made_up"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "model.py").write_text(MODEL)
    return folder


def tree(package: Path) -> Tree:
    (found,) = folders([package])
    return found


def test_every_file_is_checked_and_keeps_the_promises(package: Path) -> None:
    looked = check_files(list(tree(package).files()))
    assert [x.file.name for x in looked] == ["__init__.py", "model.py"]
    assert [(f.code, f.status) for f in looked[1].findings] == [("AF101", "safe"), ("AF302", "safe")]
    assert looked[1].broken == () and b"# one row for each query" in (looked[1].after or b"")


def test_rewritten_code_runs_before_and_after(package: Path) -> None:
    looked = check_files(list(tree(package).files()))
    outcomes = {r.symbol: (r.outcome, r.why) for r in run_both(tree(package), looked)}
    assert outcomes["Attention"] == ("equal", "")
    assert outcomes["Unbuildable"][0] == "not run" and "open" in outcomes["Unbuildable"][1]


def test_a_wrong_rewrite_is_found(package: Path) -> None:
    looked = check_files(list(tree(package).files()))
    wrong = [
        replace(x, after=(x.after or b"").replace(b"attention(q, k", b"attention(k, q")) if x.after else x
        for x in looked
    ]
    assert {r.symbol: r.outcome for r in run_both(tree(package), wrong)}["Attention"] == "different"


def test_the_summary_has_no_paths_and_the_json_has_every_place(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--folder", str(package), "--json", str(tmp_path / "run.json")]) == 0
    text = capsys.readouterr().out
    assert "| made_up | 2 | 2 | 0 | 0 | 0 |" in text and str(tmp_path) not in text
    (data,) = json.loads((tmp_path / "run.json").read_text())["packages"]
    assert [f["path"] for f in data["files"]] == ["made_up/model.py"]


def test_labelled_places_are_scored(package: Path, tmp_path: Path) -> None:
    sources = tmp_path / "sources" / "gh" / "somebody+thing"
    sources.mkdir(parents=True)
    (sources / "model.py").write_text(MODEL)
    place = {"source": "gh:somebody/thing@1", "file": "model.py", "grade": "core", "kind": "attention"}
    places = [{**place, "lines": [16, 17], "fusable": "yes"}, {**place, "lines": [16, 16], "fusable": "no:made up"}]
    absent = {**place, "file": "other.py", "lines": [1, 1], "fusable": "yes"}
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps([*places, absent, {**place, "grade": "debatable"}]))
    row = score_labels(truth, tmp_path / "sources")["attention", "core"]
    assert {k: n for k, n in row.items() if n} == {"to fuse": 1, "fixed": 1, "not to fuse": 1, "wrong": 1, "absent": 1}
