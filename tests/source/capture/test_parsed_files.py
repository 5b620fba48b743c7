"""A file has one syntax tree under all of its paths, as long as its text is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.source.capture.parsed_files import ParsedFiles

TEXT = b"import torch\n\n\nclass Gelu:\n    def forward(self, x):\n        return torch.relu(x)\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    path = tmp_path / "layers.py"
    path.write_bytes(TEXT)
    return path


def test_a_file_has_one_tree_under_all_of_its_names(file: Path) -> None:
    parsed, other = ParsedFiles(), f"{file.parent}/inner/../layers.py"
    one, two = parsed.scope(TEXT, str(file)), parsed.scope(TEXT, other)
    assert one.tree is two.tree
    assert one.classes["Gelu"] is two.classes["Gelu"]
    assert (str(one.file), str(two.file)) == (str(file), other)


def test_a_changed_text_is_parsed_again(file: Path) -> None:
    parsed = ParsedFiles()
    before = parsed.scope(TEXT, str(file))
    after = parsed.scope(TEXT.replace(b"Gelu", b"Relu"), str(file))
    assert "Gelu" in before.classes
    assert "Relu" in after.classes


def test_a_text_with_a_syntax_error_is_not_kept(file: Path) -> None:
    parsed = ParsedFiles()
    with pytest.raises(SyntaxError):
        parsed.scope(b"def f(:", str(file))
    assert parsed.scope(TEXT, str(file)).classes


def test_trees_are_dropped_if_the_limit_is_exceeded(file: Path) -> None:
    parsed = ParsedFiles()
    first = parsed.tree(TEXT, str(file))
    assert not parsed.is_full
    assert parsed.tree(TEXT, str(file)) is first
    parsed.most = 10
    assert parsed.is_full
    parsed.drop()
    assert not parsed.is_full
    assert parsed.tree(TEXT, str(file)) is not first


def test_several_processes_share_the_limit() -> None:
    parsed, shared = ParsedFiles(), ParsedFiles()
    shared.divide_limit(4)
    assert shared.most == parsed.most // 4
    shared.divide_limit(1000)
    assert shared.most > parsed.most // 1000  # each process keeps at least a few files


def test_a_file_that_is_needed_again_is_kept_without_what_it_knows_about_others(file: Path) -> None:
    user = file.parent / "user.py"
    user.write_bytes(b"from layers import Gelu\n\n\nclass Wide(Gelu):\n    pass\n" + b"#" * 1000)
    parsed = ParsedFiles(most=200)
    kept = parsed.scope(TEXT, str(file))
    dropped = parsed.scope(user.read_bytes(), str(user))
    kept.imported_classes["Wide"] = dropped.classes["Wide"], dropped
    parsed.most = 4 * len(TEXT)
    parsed.drop(keep=[str(file)])
    assert parsed.scope(TEXT, str(file)) is kept
    assert not kept.imported_classes
    assert parsed.scope(user.read_bytes(), str(user)) is not dropped


def test_files_that_would_leave_no_room_are_not_kept(file: Path) -> None:
    parsed = ParsedFiles(most=len(TEXT) - 1)
    first = parsed.tree(TEXT, str(file))
    parsed.drop(keep=[str(file)])
    assert not parsed.is_full
    assert parsed.tree(TEXT, str(file)) is not first
