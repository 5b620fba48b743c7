"""autofuse profile module:factory, and what is said of options that lead nowhere."""

import json
import sys
from pathlib import Path

import pytest

from autofuse.cli import main

FEW = ["profile", "--warmup", "1", "--steps", "2", "--trace-steps", "1"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own to work in, from which modules are found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "af_made_for_a_test.py").write_text(
        "import torch\n"
        "def pair(): return torch.nn.Linear(3, 4), torch.ones(2, 3)\n"
        "def broken(): raise OSError('no data')\n"
        "def leaving(): raise SystemExit(3)\n"
        "def without_numbers(): return torch.nn.Linear(3, 4, device='meta'), torch.ones(2, 3)\n"
    )


def test_a_factory_is_profiled(capsys: pytest.CaptureFixture[str]):
    assert main([*FEW, "--tokens", "6", "--output", "out", "af_made_for_a_test:pair"]) == 0
    assert "Written: out/profile.json" in capsys.readouterr().out
    data = json.loads(Path("out", "profile.json").read_text())
    assert (data["name"], data["kind"]) == ("af_made_for_a_test:pair", "live")
    assert (data["timing"]["samples"], data["timing"]["tokens"]) == (2, 6)
    assert data["trace_file"] == "trace.json.gz"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no.py"], "no.py cannot be read: No such file or directory."),
        (["make_model"], "write a function that builds a model as MODULE:FUNCTION"),
        ([], "Say what to profile"),
        (["af_made_for_a_test:other"], "has no 'other'"),
        (["af_made_for_a_test:pair", "--lr", "1"], "remove '--lr'"),
        (["af_made_for_a_test:broken"], "it raised OSError"),
        (["af_made_for_a_test:leaving"], "it ended the program with exit code 3"),
        (["af_made_for_a_test:without_numbers"], "is on the meta device"),
        (["-m", "af_nowhere"], "No module named 'af_nowhere'"),
        (["--ncu", "report.csv", "af_made_for_a_test:pair"], "pass the trace of the same program with --trace"),
        (["--output", "af_made_for_a_test.py", "af_made_for_a_test:pair"], "cannot be written to"),
    ],
)
def test_bad_input_exits_2_with_a_message(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main([*FEW, *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not Path("autofuse-profile", "profile.json").exists()
