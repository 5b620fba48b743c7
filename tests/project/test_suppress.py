"""The findings that `# autofuse: ignore` comments switch off."""

from __future__ import annotations

import pytest

from autofuse.project.suppress import Suppressions, read_suppressions


def test_a_bare_ignore_covers_every_code_on_its_line_only() -> None:
    found = read_suppressions(b"x = 1\ny = 2  # autofuse: ignore\n")
    assert found.covers("AF101", 2, 2)
    assert found.covers("AF601", 1, 5)
    assert not found.covers("AF101", 1, 1)
    assert not found.covers("AF101", 3, 9)


@pytest.mark.parametrize("listed", ["AF101", "AF1", "af101", "AF203, AF101", "AF203 AF1"])
def test_a_listed_code_covers_all_codes_with_this_prefix(listed: str) -> None:
    found = read_suppressions(f"x = 1  # autofuse: ignore[{listed}]\n".encode())
    assert found.covers("AF101", 1, 1)
    assert not found.covers("AF601", 1, 1)


def test_empty_brackets_switch_nothing_off() -> None:
    assert not read_suppressions(b"x = 1  # autofuse: ignore[]\n").covers("AF101", 1, 1)
    assert not read_suppressions(b"x = 1  # autofuse: ignore-file[]\n").covers("AF101", 1, 1)


def test_a_whole_file_can_be_switched_off_from_any_line() -> None:
    assert read_suppressions(b"x = 1\n# autofuse: ignore-file\n").covers("AF101", 1, 1)
    some = read_suppressions(b"# autofuse: ignore-file[AF3]\n")
    assert some.covers("AF301", 7, 9)
    assert not some.covers("AF101", 7, 9)


@pytest.mark.parametrize("comment", ["#autofuse:ignore", "#  autofuse:  ignore", "# noqa: E501  # autofuse: ignore"])
def test_spacing_and_other_comments_on_the_line_do_not_matter(comment: str) -> None:
    assert read_suppressions(f"x = 1  {comment}\n".encode()).covers("AF101", 1, 1)


@pytest.mark.parametrize("comment", ["# autofuse: ignored", "# autofuse: ignore-files", "# please autofuse, ignore"])
def test_a_similar_comment_switches_nothing_off(comment: str) -> None:
    assert read_suppressions(f"x = 1  {comment}\n".encode()) == Suppressions()


def test_text_in_a_string_is_not_a_comment() -> None:
    assert read_suppressions(b's = """\n# autofuse: ignore-file\n"""\nt = "# autofuse: ignore"\n') == Suppressions()


@pytest.mark.parametrize(
    "source", [b"\xef\xbb\xbfx = 1  # autofuse: ignore\r\n", b"# coding: latin-1\nx = '\xe9'  # autofuse: ignore"]
)
def test_encodings_and_line_ends_are_supported(source: bytes) -> None:
    assert read_suppressions(source).covers("AF101", 1, 2)
