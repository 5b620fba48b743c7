"""The GitHub Action: its steps run as on a runner, with a `gh` that records its calls."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((REPOSITORY / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
ATTENTION = """\
import torch


def attend(q, k, v):
    '''```'''
    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v
"""
GH = """\
#!/bin/sh
# Lists no comment, or the one that is named; writes down what is written.
case "$*" in
*--paginate*) printf '%s' "$EXISTING" ;;
*) echo "$*" >>"$ASKED"; for a; do case "$a" in body=@*) cat "${a#body=@}" >>"$ASKED" ;; esac; done ;;
esac
"""


class Runner:
    """The folders and environment of a job, with autofuse installed as the first step does."""

    def __init__(self, folder: Path) -> None:
        self.work, self.temp, tools = folder / "work", folder / "temp", folder / "tools"
        for each in (self.work, tools, self.temp / "autofuse" / "bin"):
            each.mkdir(parents=True)
        script(self.temp / "autofuse" / "bin" / "autofuse", f'#!/bin/sh\nexec "{sys.executable}" -m autofuse "$@"\n')
        script(tools / "gh", GH)
        (self.work / "pyproject.toml").write_text("[tool.autofuse]\n")
        self.output, self.asked, self.summary = folder / "output", folder / "asked", folder / "summary"
        self.environment = {
            **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "RUNNER_TEMP": str(self.temp), "EXISTING": "",
            "GITHUB_ACTION_PATH": str(REPOSITORY), "GITHUB_OUTPUT": str(self.output), "ASKED": str(self.asked),
            "GITHUB_STEP_SUMMARY": str(self.summary), "GITHUB_REPOSITORY": "me/mine", "PULL_REQUEST": "7",
        }  # fmt: skip

    def step(self, name: str, **given: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", STEPS[name]["run"]], cwd=self.work, env=self.environment | given, capture_output=True,
            text=True,
        )  # fmt: skip

    @property
    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.output.read_text().splitlines())


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_findings_are_annotated_written_as_sarif_and_counted(runner: Runner) -> None:
    (runner.work / "a.py").write_text(ATTENTION)
    done = runner.step("Check", AUTOFUSE_PATHS="a.py --fix", AUTOFUSE_ARGUMENTS="--select AF1")
    assert done.returncode == 0 and "::warning file=a.py,line=6" in done.stdout
    assert (runner.outputs["code"], runner.outputs["findings"]) == ("2", "1")  # there is no file --fix
    (result,) = json.loads(Path(runner.outputs["sarif"]).read_text())["runs"][0]["results"]
    assert result["ruleId"] == "AF101" and result["fixes"]
    assert "AF101" in runner.summary.read_text()


CODES = [("0", "true", 0), ("1", "true", 1), ("1", "false", 0), ("2", "false", 2), ("", "true", 2)]


@pytest.mark.parametrize(("code", "fail", "expected"), CODES)
def test_the_job_fails_on_findings_on_request_and_always_on_errors(
    runner: Runner, code: str, fail: str, expected: int
) -> None:
    assert runner.step("Result", AUTOFUSE_CODE=code, AUTOFUSE_FAIL=fail).returncode == expected


def test_one_comment_has_the_diff_and_is_replaced_later(runner: Runner) -> None:
    (runner.work / "a.py").write_text(ATTENTION)
    assert runner.step("Comment", AUTOFUSE_PATHS=".").returncode == 0
    asked = runner.asked.read_text()
    assert "POST repos/me/mine/issues/7/comments" in asked and "+    return torch.nn" in asked
    assert asked.count("````") == 2  # the diff has three backticks of its own
    (runner.work / "a.py").write_text("import torch\n")
    runner.asked.unlink()
    assert runner.step("Comment", AUTOFUSE_PATHS=".").returncode == 0
    assert not runner.asked.exists()
    runner.step("Comment", AUTOFUSE_PATHS=".", EXISTING="12")
    assert "PATCH repos/me/mine/issues/comments/12" in runner.asked.read_text()


def test_the_inputs_that_the_steps_use_are_declared() -> None:
    used = set(re.findall(r"inputs\.(\w+)", (REPOSITORY / "action.yml").read_text()))
    assert used == set(ACTION["inputs"])
    outputs = set(re.findall(r"steps\.check\.outputs\.(\w+)", (REPOSITORY / "action.yml").read_text()))
    assert outputs == set(re.findall(r'echo "(\w+)=', (REPOSITORY / "tools/action/check.sh").read_text()))
    for step in STEPS.values():
        # What a pull request can write comes by the environment: in a script it would be executed.
        assert "${{" not in step.get("run", "")
        if "run" in step:
            assert (REPOSITORY / step["run"].partition("$GITHUB_ACTION_PATH/")[2].rstrip('"')).is_file()
