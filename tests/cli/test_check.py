"""Tests of `autofuse check` in a repository with findings: baselines, comments, statistics, formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autofuse.cli import main

ATTENTION = """\
import torch


def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v
"""
ANOTHER = ATTENTION.replace("attend", "attend_again")
TWO = ATTENTION + ANOTHER.removeprefix("import torch\n")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    (tmp_path / "pyproject.toml").write_text("[tool.autofuse]\n")
    (tmp_path / "a.py").write_text(ATTENTION)
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = main(["check", *arguments])
        message = capsys.readouterr()
        return code, message.out, message.err

    return run_command


MOVED = {
    "lines above": "# a comment\n\n" + ATTENTION,
    "other indentation": ATTENTION.replace("\ndef", "\nif True:\n  def").replace("    return", "      return"),
    "another function": ATTENTION + "\n\ndef f(x):\n    return x\n",
}
NEW = {"a second one": TWO, "other text": ATTENTION.replace("0.5", "0.50"), "another function": ANOTHER}


@pytest.mark.parametrize("how", MOVED)
def test_a_recorded_finding_does_not_fail_even_if_it_moved(run: Run, how: str) -> None:
    assert run("--baseline", "known.json", "--write-baseline", ".")[0] == 0
    Path("a.py").write_text(MOVED[how])
    code, out, message = run("--baseline", "known.json", ".")
    assert (code, out) == (0, ""), message
    assert "1 known finding left out" in message


@pytest.mark.parametrize("how", NEW)
def test_only_findings_outside_the_baseline_fail_and_are_reported(run: Run, how: str) -> None:
    run("--baseline", "known.json", "--write-baseline", ".")
    Path("a.py").write_text(NEW[how])
    code, out, _ = run("--baseline", "known.json", ".")
    assert code == 1 and out.count("AF101") == 1


def test_a_baseline_works_from_any_folder_and_reports_lost_findings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("--baseline", "known.json", "--write-baseline", ".")
    Path("inner").mkdir()
    monkeypatch.chdir("inner")
    assert run("--baseline", "../known.json", "../a.py")[0] == 0
    Path("../a.py").write_text("import torch\n")
    assert "1 finding of it is gone" in run("--baseline", "../known.json", "../a.py")[2]


@pytest.mark.parametrize("content", [None, "", "[]", '{"version": 9, "findings": []}', '{"version": 1}'])
def test_an_unusable_baseline_gives_a_message_and_exit_code_2(run: Run, content: str | None) -> None:
    if content is not None:
        Path("known.json").write_text(content)
    code, out, message = run("--baseline", "known.json", ".")
    assert (code, out) == (2, "")
    assert "baseline" in message and "Traceback" not in message
    assert run("--write-baseline", ".")[0] == 2


IGNORES = {
    "one line": (ATTENTION, 1),
    "two functions": (TWO, 2),
    "a comment at the end": (ATTENTION.replace("@ v\n", "@ v  # why\n"), 1),
    "a listed comment": (ATTENTION.replace("@ v\n", "@ v  # autofuse: ignore[AF2]\n"), 1),
    "several lines": (ATTENTION.replace("softmax(q", "softmax(\n        q").replace("dim=-1)", "dim=-1\n    )"), 1),
    "a backslash": (ATTENTION.replace(" @ v", " \\\n        @ v"), 1),
    "no line end": (ATTENTION.rstrip(), 1),
    "other line ends": (ATTENTION.replace("\n", "\r\n"), 1),
}


@pytest.mark.parametrize("how", IGNORES)
def test_ignore_comments_are_added_and_nothing_else_changes(run: Run, how: str) -> None:
    text, count = IGNORES[how]
    Path("a.py").write_bytes(text.encode())
    code, _, message = run("--add-ignore", ".")
    assert code == 0 and f"{count} comment{'s' * (count > 1)} written" in message
    after = Path("a.py").read_bytes().decode()
    assert after.count("\r\n") == text.count("\r\n") and len(after.splitlines()) == len(text.splitlines())
    assert run(".")[:2] == (0, "")
    assert "0 comments written" in run("--add-ignore", ".")[2]


STALE = {
    "ignore[AF101]": True, "ignore[AF1]": True, "ignore[AF101, AF2]": True, "ignore": True, "ignore-file[AF1]": True,
    "ignore-file": True, "ignore[MY101]": False, "ignore[]": False, "ignore[AF602]": False,
}  # fmt: skip


@pytest.mark.parametrize("comment", STALE)
def test_an_ignore_comment_without_effect_is_reported(run: Run, comment: str) -> None:
    Path("a.py").write_text(f"import torch\n\n\ndef f(x):\n    return torch.relu(x)  # autofuse: {comment}\n")
    # A comment without codes is reported as unused only if all rules are selected.
    code, _, message = run("--select", "AF", ".") if comment in ("ignore", "ignore-file") else run(".")
    assert code == 0
    assert ("switches nothing off" in message) == STALE[comment]


def test_a_comment_for_an_unselected_rule_is_not_reported(run: Run) -> None:
    Path("a.py").write_text(ATTENTION.replace("@ v\n", "@ v  # autofuse: ignore[AF101]\n"))
    assert "switches" not in run(".")[2]
    assert "switches" not in run("--select", "AF2", ".")[2]


def test_statistics_replace_findings(run: Run) -> None:
    code, out, _ = run("--statistics", ".")
    assert code == 1 and out.splitlines() == ["1  AF101  [safe]  HandWrittenAttention", "1 finding in 1 file"]
    assert json.loads(run("--statistics", "--output-format", "json", ".")[1])[0]["count"] == 1
    assert run("--exit-zero", ".")[0] == 0


def test_format_is_an_alias_of_output_format_and_sarif_always_has_fixes(run: Run) -> None:
    assert run("--format", "json", ".")[1] == run("--output-format", "json", ".")[1]
    first, second = (json.loads(run("--output-format", "sarif", ".")[1]) for _ in range(2))
    assert first == second
    (fix,) = first["runs"][0]["results"][0]["fixes"]
    (replacement,) = fix["artifactChanges"][0]["replacements"]
    assert "scaled_dot_product_attention" in replacement["insertedContent"]["text"]


def test_advice_about_gpus_appears_only_if_selected(run: Run) -> None:
    Path("a.py").write_text(
        "import torch\n\n\ndef train(model, batches):\n    model.to('cuda')\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)\n    for x, y in batches:\n"
        "        optimizer.zero_grad()\n"
        "        loss = torch.nn.functional.cross_entropy(model(x.to('cuda')), y.to('cuda'))\n"
        "        loss.backward()\n        optimizer.step()\n"
    )
    assert "AF60" not in run(".")[1]
    assert "AF604" in run("--select", "AF6", ".")[1]
