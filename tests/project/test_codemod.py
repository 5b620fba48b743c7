"""The LibCST codemod, run by the tools of LibCST."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import libcst as cst
import pytest
from libcst.codemod import CodemodContext, SkipFile

from autofuse.project.codemod import AutofuseCommand

ATTENTION = """\
import torch.nn.functional as F


def attend(q, k, v):
    # all heads at once
    scores = q @ k.transpose(-2, -1) / (4.0 * q.size(-1) ** 0.5)
    return F.softmax(scores, dim=-1) @ v
"""
NORM = """\
import torch


def norm(x):
    return x * torch.sigmoid(x)
"""


def transform(text: str, filename: str | None = None, **options: object) -> str:
    context = CodemodContext(filename=filename)
    return AutofuseCommand(context, **options).transform_module(cst.parse_module(text)).code  # type: ignore[arg-type]


def test_a_safe_edit_is_applied_and_comments_stay() -> None:
    text = transform(ATTENTION)
    assert "F.scaled_dot_product_attention(q, k, v, scale=" in text
    assert "    # all heads at once\n" in text and "softmax" not in text
    assert transform(text) == text


def test_an_unsafe_edit_is_applied_on_request() -> None:
    assert transform(NORM) == NORM
    assert "silu(" in transform(NORM, unsafe=True)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_text_without_findings_does_not_change(line_end: str) -> None:
    text = f"import torch{line_end}x  =  1{line_end}"
    assert transform(text) == text


def test_comments_and_settings_switch_findings_off(tmp_path: Path) -> None:
    assert transform(f"# autofuse: ignore-file\n{ATTENTION}") == f"# autofuse: ignore-file\n{ATTENTION}"
    (tmp_path / "pyproject.toml").write_text('[tool.autofuse]\nignore = ["AF1"]\n')
    assert transform(ATTENTION, str(tmp_path / "model.py")) == ATTENTION


def test_a_wrong_configuration_skips_the_file_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.autofuse]\nignore = ["AF9"]\n')
    command = AutofuseCommand(CodemodContext(filename=str(tmp_path / "model.py")))
    with pytest.raises(SkipFile, match="No rule has the code 'AF9'"):
        command.transform_module(cst.parse_module(ATTENTION))


def test_the_tool_of_libcst_runs_the_codemod(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(ATTENTION)
    command = ["libcst.tool", "codemod", "-x", "--no-format", "autofuse.source.codemod.AutofuseCommand", "model.py"]
    done = subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "scaled_dot_product_attention(" in path.read_text()
