"""One run over files: what is read, what is left out, and what one bad file may not do to the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autofuse.loading.registry import load_rules
from autofuse.loading.selection import UnknownCode
from autofuse.project.config import FileSettings
from autofuse.project.file_discovery import SourceFile, Trouble
from autofuse.project.run import Checked, RewriteRun, Rewritten, rewritten
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


def checked(file: SourceFile, run: RewriteRun | None = None) -> Checked:
    result = (run or RewriteRun()).check(file)
    assert isinstance(result, Checked), result
    return result


def codes(result: Checked) -> list[str]:
    return [p.finding.code for p in result.proposals]


def test_a_file_is_checked_with_the_rules_that_its_settings_choose(tmp_path: Path) -> None:
    assert codes(checked(source_file(tmp_path, ATTENTION))) == ["AF101"]
    assert codes(checked(source_file(tmp_path, ATTENTION, select=("AF2",)))) == []
    assert codes(checked(source_file(tmp_path, ATTENTION, ignore=("AF1",)))) == []
    assert codes(checked(source_file(tmp_path, ATTENTION, per_file_ignores=(("model.py", ("AF1",)),)))) == []


def test_the_command_line_replaces_what_is_selected_and_adds_to_what_is_ignored(tmp_path: Path) -> None:
    file = source_file(tmp_path, ATTENTION, select=("AF2",))
    assert codes(checked(file, RewriteRun(select=("AF1",)))) == ["AF101"]
    file = source_file(tmp_path, ATTENTION, ignore=("AF2",))
    assert codes(checked(file, RewriteRun(ignore=("AF1",)))) == []


@pytest.fixture
def started_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are executed of the project that autofuse was started in."""
    (tmp_path / "pyproject.toml").write_text("[tool.autofuse]\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("started_here")
def test_rules_of_the_project_are_used_beside_the_others(tmp_path: Path) -> None:
    own = Path(__file__).parents[2] / "rules" / "attention.py"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "attention.py").write_text(re.sub("AF(?=10[0-9])", "MY", own.read_text()))
    settings = FileSettings(tmp_path, select=("MY101",), rules=(tmp_path / "mine",))
    assert [r.rule.code for r in RewriteRun().rules(settings)] == ["MY101"]
    assert codes(checked(source_file(tmp_path, ATTENTION, select=("MY101",), rules=(tmp_path / "mine",)))) == ["MY101"]


@pytest.mark.usefixtures("started_here")
def test_wrong_codes_and_broken_rules_are_told_before_any_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(UnknownCode):
        RewriteRun(select=("AF9",)).rules(FileSettings(tmp_path))
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(RuleError, match=r"broken\.py"):
        RewriteRun().rules(FileSettings(tmp_path, rules=(tmp_path,)))


def test_a_file_of_a_tree_that_never_mentions_torch_is_not_parsed(tmp_path: Path) -> None:
    assert codes(checked(source_file(tmp_path, b"def f(:\n", named=False))) == []
    assert isinstance(RewriteRun().check(source_file(tmp_path, b"def f(:\n", named=True)), Trouble)


def test_a_missing_file_is_a_trouble(tmp_path: Path) -> None:
    result = RewriteRun().check(SourceFile(str(tmp_path / "gone.py"), FileSettings(tmp_path), named=True))
    assert result == Trouble(f"{tmp_path / 'gone.py'}: cannot be read: No such file or directory.")


def test_a_rewrite_goes_on_until_nothing_is_left(tmp_path: Path) -> None:
    file = source_file(tmp_path, ATTENTION)
    run = RewriteRun()
    result = run.rewrite(checked(file, run), file)
    assert isinstance(result, Rewritten)
    assert (result.before, result.edits) == (ATTENTION, 1)
    again = run.check_text(result.after, file)
    assert isinstance(again, Checked) and codes(again) == []
    assert Path(file.path).read_bytes() == ATTENTION


def test_an_edit_that_cannot_be_made_is_told_and_does_not_hold_up_the_others(tmp_path: Path) -> None:
    function = ATTENTION.partition(b"\n\n\n")[2]
    odd = b"\x0c" + function  # libcst does not give this form feed back
    parts = [function.replace(b"attend", b"first"), odd, function.replace(b"attend", b"last")]
    file = source_file(tmp_path, b"import torch\n" + b"".join(parts))
    result = RewriteRun().rewrite(checked(file), file)
    assert isinstance(result, Rewritten)
    assert result.edits == 2 and odd in result.after and result.after.count(b"softmax") == 1
    (refused,) = result.refused
    assert refused.message.startswith(f"{file.path}:5: AF101 not rewritten: libcst does not give this text back")


def test_the_text_of_an_example_can_be_rewritten() -> None:
    assert "scaled_dot_product_attention(" in rewritten(ATTENTION.decode(), load_rules())
    assert rewritten("import torch\nx = 1\n", load_rules()) == "import torch\nx = 1\n"
