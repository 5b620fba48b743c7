"""`autofuse plan` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autofuse.cli import main

FACTORY = """
import torch
from torch import nn

def small():
    print("built")
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.randn(8, 64)

def meta():
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.randn(8, 64)

def wrong():
    return 3

def broken():
    raise RuntimeError("no")

def unpacked():
    model, inputs = nn.Linear(8, 8), torch.randn(8, 8), None

def leaving():
    raise SystemExit(3)
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "planned_here.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    return "planned_here"


def test_stdout_contains_only_json(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--batch", "16", "--memory", "1GiB", "--no-fusion", "--format", "json"]
    assert main(["plan", f"{factory}:small", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["type"] == "plan" and found["simulated"] is True
    assert found["setting"]["batch"] == 16
    assert found["before"]["memory"]["parameters"] == 2 * (64 * 64 + 64) * 4
    assert found["before"]["fit"] == "fits"
    assert found["before"]["largest_batch"] > 16


def test_a_factory_may_build_on_the_meta_device(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    plans = []
    for name in ("small", "meta"):
        assert main(["plan", f"{factory}:{name}", "--dtype", "bfloat16", "--no-fusion", "--format", "json"]) == 0
        plans.append(json.loads(capsys.readouterr().out)["before"])
    assert plans[0] == plans[1] and plans[0]["memory"]["peak_bytes"] > 0


def test_a_plan_that_does_not_fit_exits_1(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"{factory}:small", "--memory", "10kB", "--no-fusion"]) == 1
    shown = capsys.readouterr().out
    assert "does not fit" in shown and "simulated" in shown.lower()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["leaving"], "planned_here:leaving ended the program, with exit code 3"),
        (["small", "--sequence", "9"], "which of their dimensions is the batch and which the sequence"),
        (["small", "--device", "Abacus"], "--memory 80GiB"),
        (["small", "--strategy", "ddp"], "--shard"),
        (["small", "--checkpointing", "block"], "no list of equal blocks"),
        (["wrong"], "returns a int"),
        (["small", "--scale", "8", "--link", "50GB", "--step-seconds", "0"], "takes more than 0 s"),
        (["broken"], "nothing was planned"),
        (["unpacked"], "raised ValueError, so nothing was planned"),
        (["missing"], "has no 'missing'"),
    ],
)
def test_a_model_that_cannot_be_planned_exits_2_with_a_message(
    factory: str, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{factory}:{arguments[0]}", *arguments[1:]]) == 2
    told = capsys.readouterr()
    assert sentence in told.err and not told.out
