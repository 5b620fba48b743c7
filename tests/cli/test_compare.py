"""Tests of `autofuse compare`: arguments, output and exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autofuse.cli import main
from autofuse.results.comparison import Comparison, Estimate, Interval
from autofuse.results.profile import Profile
from tests.display.samples import gpt


def profile_with_time(profile: Profile, seconds: float) -> Profile:
    timing = replace(
        profile.timing, seconds=(seconds,) * 20, interval=Interval(seconds, seconds), yardstick=(0.001,) * 20
    )
    return replace(profile, timing=timing)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(profile_with_time(gpt(), 0.3).to_json())
    after.write_text(profile_with_time(gpt(True), 0.1).to_json())
    return str(before), str(after)


def test_two_profiles_are_compared(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *files, "--anyway"]) == 0
    out = capsys.readouterr().out
    assert "confirmed: 3.00x (3.00 to 3.00) (measured apart)" in out
    assert "layers that changed" in out


def test_the_json_is_complete(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *files, "--format", "json", "--anyway", "--fail-if", "time_ratio>0.5"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["version"], output["type"], output["verdict"]) == (1, "difference", "confirmed")
    assert output["ratio"] == pytest.approx(3.0)
    assert output["step_seconds"] == {"before": 0.3, "after": 0.1}
    assert output["conditions"][0]["holds"] is False
    assert {"memory", "ladder", "layers", "categories"} <= set(output)


@pytest.mark.parametrize(
    "conditions, code",
    [
        (["time_ratio>1.02"], 1),
        (["time_ratio<1.02"], 0),
        (["time_ratio>1.02 and peak_memory_ratio<0.01"], 0),
        (["time_ratio<1", "time_ratio>1"], 1),
        (["nonsense>1"], 2),
        (["time_ratio=1"], 2),
    ],
)
def test_the_exit_code_follows_the_conditions(files: tuple[str, str], conditions: list[str], code: int) -> None:
    before, after = files
    fail_if = [part for text in conditions for part in ("--fail-if", text)]
    assert main(["compare", after, before, "--anyway", *fail_if]) == code


def test_one_comparison_alone_keeps_its_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    equal = Estimate(1.0, Interval(0.99, 1.01))
    comparison = Comparison(1.1, Interval(1.05, 1.2), equal, "confirmed", "Because.", (1.1,) * 8, (1.0,) * 8)
    (tmp_path / "demo.json").write_text(json.dumps({"comparison": comparison.to_dict(), "plan": {}}))
    assert main(["compare", str(tmp_path / "demo.json"), "--fail-if", "time_ratio>0.99"]) == 0
    out = capsys.readouterr()
    assert "confirmed: 1.10x (1.05 to 1.20) (interleaved)" in out.out
    assert "time_ratio>0.99 does not hold" in out.err


@pytest.mark.parametrize(
    "content, sentence",
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"traceEvents": []}', "autofuse profile --trace"),
        ('{"a": 1}', "neither a profile nor a comparison"),
        ('{"verdict": "confirmed", "before_seconds": [1], "version": 99}', "format version 99"),
        ('{"verdict": "confirmed", "before_seconds": [1], "version": 1}', "lacks"),
        (
            '{"verdict": "confirmed", "reason": "", "ratio": null, "interval": [1, 1], "pairs": 1, "before_seconds": '
            '[1], "after_seconds": [1], "control": {"ratio": 1, "interval": [1, 1]}, "version": 1}',
            "without a ratio",
        ),
    ],
)
def test_files_that_cannot_be_compared_give_a_message(
    files: tuple[str, str], tmp_path: Path, content: str | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    if content is not None:
        other.write_text(content)
    assert main(["compare", files[0], str(other)]) == 2
    output = capsys.readouterr()
    assert sentence in output.err.replace("\n", " ")
    assert not output.out


def test_a_single_profile_is_an_error(files: tuple[str, str]) -> None:
    assert main(["compare", files[0]]) == 2


def trace_file(path: Path, matmul: float) -> str:
    """Two steps of 1 ms, each with a matrix product of `matmul` microseconds and an activation."""
    entries = []
    for start in (0, 2000):
        entries.append(("user_annotation", f"ProfilerStep#{start // 2000}", start, 1000.0))
        entries.append(("user_annotation", "mod::fc", start + 50, matmul + 200))
        entries.append(("cpu_op", "aten::mm", start + 100, matmul))
        entries.append(("cpu_op", "aten::gelu", start + 900, 50.0))
    events = [
        {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "pid": 1, "tid": 1}
        for cat, name, start, length in entries
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return str(path)


def test_raw_traces_are_compared_by_layer_and_by_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = trace_file(tmp_path / "a.json", 500), trace_file(tmp_path / "b.json", 100)
    assert main(["compare", *paths, "--format", "json", "--fail-if", "layer_ratio[fc]<0.5"]) == 1
    data = json.loads(capsys.readouterr().out)
    kernels = {change["name"]: change for change in data["kernels"]}
    assert kernels["aten::mm"]["kind"] == "faster" and kernels["aten::gelu"]["kind"] == "about the same"
    assert (kernels["aten::mm"]["before"], kernels["aten::mm"]["count_after"]) == (pytest.approx(5e-4), 1)
    layers = {change["fqn"]: change["kind"] for change in data["layers"]}
    assert layers["fc"] == "faster"
    assert main(["compare", *paths]) == 0
    assert "kernels that changed" in capsys.readouterr().out


def test_the_error_names_a_file_that_is_neither_a_result_nor_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = trace_file(tmp_path / "a.json", 500), tmp_path / "b.json"
    bad.write_text("{}")
    assert main(["compare", good, str(bad)]) == 2
    assert "b.json" in capsys.readouterr().err


def test_the_conditions_become_a_junit_report_and_a_summary(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, report = tmp_path / "summary.md", tmp_path / "junit.xml"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    arguments = ["--anyway", "--fail-if", "time_ratio>0.1", "--junit", str(report), "--github"]
    assert main(["compare", *files, *arguments]) == 1
    suite = ElementTree.parse(report).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")
    assert "confirmed: 3.00x" in summary.read_text() and "| fails |" in summary.read_text()
