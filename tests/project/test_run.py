"""Checking and rewriting files: which files are read, and that a bad file does not affect the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autofuse.loading.registry import load_rules
from autofuse.loading.selection import UnknownCode
from autofuse.project.config import FileSettings
from autofuse.project.file_discovery import Problem, SourceFile
from autofuse.project.run import CheckedFile, RewriteResult, RewriteRun, rewrite_text
from autofuse.rule import RuleError

ATTENTION = b"""\
import torch


def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v
"""


def source_file(folder: Path, content: bytes, named: bool = True, **settings: object) -> SourceFile:
    path = folder / "model.py"
    path.write_bytes(content)
    return SourceFile(str(path), FileSettings(folder, **settings), named)  # type: ignore[arg-type]


def check_file(file: SourceFile, run: RewriteRun | None = None) -> CheckedFile:
    result = (run or RewriteRun()).check(file)
    assert isinstance(result, CheckedFile), result
    return result


def codes_of(result: CheckedFile) -> list[str]:
    return [p.finding.code for p in result.proposals]


def test_a_file_is_checked_with_the_rules_that_its_settings_select(tmp_path: Path) -> None:
    assert codes_of(check_file(source_file(tmp_path, ATTENTION))) == ["AF101"]
    assert codes_of(check_file(source_file(tmp_path, ATTENTION, select=("AF2",)))) == []
    assert codes_of(check_file(source_file(tmp_path, ATTENTION, ignore=("AF1",)))) == []
    assert codes_of(check_file(source_file(tmp_path, ATTENTION, per_file_ignores=(("model.py", ("AF1",)),)))) == []


def test_the_command_line_replaces_select_and_adds_to_ignore(tmp_path: Path) -> None:
    file = source_file(tmp_path, ATTENTION, select=("AF2",))
    assert codes_of(check_file(file, RewriteRun(select=("AF1",)))) == ["AF101"]
    file = source_file(tmp_path, ATTENTION, ignore=("AF2",))
    assert codes_of(check_file(file, RewriteRun(ignore=("AF1",)))) == []


@pytest.fixture
def started_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts autofuse in this folder, so that rules of the project are executed."""
    (tmp_path / "pyproject.toml").write_text("[tool.autofuse]\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("started_here")
def test_rules_of_the_project_are_used_in_addition_to_the_others(tmp_path: Path) -> None:
    own = Path(__file__).parents[2] / "rules" / "attention.py"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "attention.py").write_text(re.sub("AF(?=10[0-9])", "MY", own.read_text()))
    settings = FileSettings(tmp_path, select=("MY101",), rules=(tmp_path / "mine",))
    assert [r.rule.code for r in RewriteRun().rules(settings)] == ["MY101"]
    assert codes_of(check_file(source_file(tmp_path, ATTENTION, select=("MY101",), rules=(tmp_path / "mine",)))) == [
        "MY101"
    ]


@pytest.mark.usefixtures("started_here")
def test_unknown_codes_and_broken_rules_are_reported_before_any_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(UnknownCode):
        RewriteRun(select=("AF9",)).rules(FileSettings(tmp_path))
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(RuleError, match=r"broken\.py"):
        RewriteRun().rules(FileSettings(tmp_path, rules=(tmp_path,)))


def test_a_file_of_a_tree_that_never_mentions_torch_is_not_parsed(tmp_path: Path) -> None:
    assert codes_of(check_file(source_file(tmp_path, b"def f(:\n", named=False))) == []
    assert isinstance(RewriteRun().check(source_file(tmp_path, b"def f(:\n", named=True)), Problem)


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    result = RewriteRun().check(SourceFile(str(tmp_path / "gone.py"), FileSettings(tmp_path), named=True))
    assert result == Problem(f"{tmp_path / 'gone.py'}: cannot be read: No such file or directory.")


def test_a_rewrite_continues_until_no_edit_is_left(tmp_path: Path) -> None:
    file = source_file(tmp_path, ATTENTION)
    run = RewriteRun()
    result = run.rewrite(check_file(file, run), file)
    assert isinstance(result, RewriteResult)
    assert (result.before, result.edits) == (ATTENTION, 1)
    again = run.check_text(result.after, file)
    assert isinstance(again, CheckedFile) and codes_of(again) == []
    assert Path(file.path).read_bytes() == ATTENTION


def test_an_impossible_edit_is_reported_and_does_not_block_the_others(tmp_path: Path) -> None:
    function = ATTENTION.partition(b"\n\n\n")[2]
    odd = b"\x0c" + function  # LibCST does not keep this form feed
    parts = [function.replace(b"attend", b"first"), odd, function.replace(b"attend", b"last")]
    file = source_file(tmp_path, b"import torch\n" + b"".join(parts))
    result = RewriteRun().rewrite(check_file(file), file)
    assert isinstance(result, RewriteResult)
    assert result.edits == 2 and odd in result.after and result.after.count(b"softmax") == 1
    (refused,) = result.refused
    assert refused.message.startswith(f"{file.path}:5: AF101 not rewritten: libcst does not reproduce this text")


def test_the_text_of_an_example_can_be_rewritten() -> None:
    assert "scaled_dot_product_attention(" in rewrite_text(ATTENTION.decode(), load_rules())
    assert rewrite_text("import torch\nx = 1\n", load_rules()) == "import torch\nx = 1\n"
