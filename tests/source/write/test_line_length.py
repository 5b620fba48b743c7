"""The line length of a file: from the configuration of its project, or else from its lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.source.write.line_length import kept_length, line_length

FILES = {
    "pyproject.toml": {
        "[tool.ruff]\nline-length = 99\n": 99,
        "[tool.black]\nline-length = 101\n": 101,
        "[tool.black]\nline_length = 101\n": 101,
        "[tool.black]\npreview = true\n[tool.ruff]\nline-length = 77\n": 77,
        "[tool.other]\nline-length = 77\n": 88,
        "[tool.ruff]\nline-length = 'wide'\n": 88,
        "[tool.ruff\nline-length = 77\n": 88,
        "[tool.ruff]\nline-length = 100000\n": 88,
    },
    "ruff.toml": {"line-length = 119\n": 119, "indent-width = 2\n": 88},
    ".ruff.toml": {"line-length = 119\n": 119},
    "setup.cfg": {"[flake8]\nmax-line-length = 130\n": 130, "[metadata]\nname = x\n": 88, "nonsense": 88},
    "tox.ini": {"[pycodestyle]\nmax_line_length = 95\n": 95},
    ".flake8": {"[flake8]\nmax-line-length=84\n": 84},
}
CASES = [(name, text, length) for name, texts in FILES.items() for text, length in texts.items()]


@pytest.mark.parametrize(("name", "text", "length"), CASES)
def test_the_project_configures_the_line_length(tmp_path: Path, name: str, text: str, length: int) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / name).write_text(text)
    (tmp_path / "package").mkdir()
    assert line_length("x = 1\n", tmp_path / "package" / "model.py") == length


def test_the_nearest_configuration_counts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 99\n")
    (tmp_path / "a" / "setup.cfg").write_text("[flake8]\nmax-line-length = 70\n")
    assert line_length("", tmp_path / "a" / "model.py") == 70


@pytest.mark.parametrize(("longest", "length"), [(20, 88), (88, 88), (89, 100), (119, 119), (120, 120), (300, 120)])
def test_without_configuration_the_lines_of_the_file_give_the_limit(longest: int, length: int) -> None:
    assert kept_length("x" * longest + "\n" + "y\n" * 10) == length


def test_a_few_long_lines_do_not_raise_the_limit() -> None:
    assert kept_length("x" * 300 + "\n" + "y\n" * 200) == 88
