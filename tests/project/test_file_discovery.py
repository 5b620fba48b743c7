"""The search for files: which files are found, which folders are skipped, and which messages appear."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from autofuse.cli import main
from autofuse.project.config import Configuration
from autofuse.project.file_discovery import EXCLUDED, Problem, Project, SourceFile


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.autofuse]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x = 1\n")


def paths(*given: str, force_exclude: bool = False) -> list[str]:
    found = list(Project(Configuration(), force_exclude).files(given))
    assert all(isinstance(f, SourceFile) for f in found)
    return [f.path for f in found if isinstance(f, SourceFile)]


def test_folders_are_searched_in_the_order_of_names() -> None:
    touch("b.py", "a/z.py", "a/b/c.pyw", "c.txt", "d.pyc", "e.ipynb")
    assert paths(".") == ["a/b/c.pyw", "a/z.py", "b.py", "e.ipynb"]


def test_a_file_that_is_named_twice_is_read_once() -> None:
    touch("a/x.py")
    assert paths("a/x.py", "a", "./a/x.py") == ["a/x.py"]


@pytest.mark.parametrize("name", sorted(EXCLUDED))
def test_folders_with_other_code_are_skipped_unless_named(name: str) -> None:
    touch(f"{name}/x.py", "x.py")
    assert paths(".") == ["x.py"]
    assert paths(name) == [f"{name}/x.py"]


def test_a_virtual_environment_is_skipped_whatever_its_name() -> None:
    touch("my_env/lib/x.py", "my_env/pyvenv.cfg", "x.py")
    assert paths(".") == ["x.py"]


def test_a_named_file_is_read_whatever_its_name_and_folder() -> None:
    touch("script", "build/x.py")
    assert paths("script", "build/x.py") == ["script", "build/x.py"]


def test_exclude_patterns_apply_below_folders_and_with_force_exclude_everywhere() -> None:
    touch("old/x.py", "x_pb2.py", "x.py")
    Path("pyproject.toml").write_text('[tool.autofuse]\nexclude = ["old", "*_pb2.py"]\n')
    assert paths(".") == ["x.py"]
    assert paths("old/x.py") == ["old/x.py"]
    assert paths("old/x.py", "x.py", force_exclude=True) == ["x.py"]


def test_links_to_files_are_followed_and_links_to_folders_are_not() -> None:
    touch("real/x.py")
    Path("real/circle").symlink_to(Path.cwd())
    Path("link.py").symlink_to("real/x.py")
    Path("dangling.py").symlink_to("nowhere.py")
    assert paths(".") == ["link.py", "real/x.py"]


def test_each_folder_has_the_settings_of_its_own_configuration() -> None:
    touch("one/x.py", "two/x.py")
    Path("two/pyproject.toml").write_text('[tool.autofuse]\nselect = ["AF2"]\n')
    found = [f for f in Project(Configuration()).files(["."]) if isinstance(f, SourceFile)]
    assert [f.settings.select for f in found] == [(), ("AF2",)]


def test_a_missing_path_is_an_error_and_an_empty_folder_a_remark() -> None:
    Path("empty").mkdir()
    missing, empty = Project(Configuration()).files(["nowhere.py", "empty"])
    assert missing == Problem("nowhere.py: there is no such file or folder. Check the path.")
    assert empty == Problem(
        "empty: there are no Python files to read in this folder. Name a folder with .py or .ipynb files.", error=False
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_reported() -> None:
    Path("secret").mkdir(mode=0)
    (problem,) = Project(Configuration()).files(["secret"])
    assert isinstance(problem, Problem) and "cannot be read: Permission denied." in problem.message


def test_a_tree_of_a_thousand_files_without_torch_takes_less_than_a_second() -> None:
    body = "def f(x):\n    return [y for y in x if y]\n" * 150
    for i in range(1000):
        path = Path(f"p{i // 25}/m{i}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(body)
    main(["check", "p0"])  # warm up: imports and rules
    start = time.process_time()
    assert main(["check", "."]) == 0
    assert time.process_time() - start < 1.0
