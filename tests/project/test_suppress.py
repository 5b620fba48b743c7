"""What `# autofuse: ignore` comments switch off."""

from __future__ import annotations

import pytest

from autofuse.project.suppress import Suppressions, suppressions


def test_a_bare_ignore_covers_every_code_on_its_line_only() -> None:
    found = suppressions(b"x = 1\ny = 2  # autofuse: ignore\n")
    assert found.cover("AF101", 2, 2)
    assert found.cover("AF601", 1, 5)
    assert not found.cover("AF101", 1, 1)
    assert not found.cover("AF101", 3, 9)


@pytest.mark.parametrize("listed", ["AF101", "AF1", "af101", "AF203, AF101", "AF203 AF1"])
def test_listed_codes_cover_themselves_and_what_they_begin(listed: str) -> None:
    found = suppressions(f"x = 1  # autofuse: ignore[{listed}]\n".encode())
    assert found.cover("AF101", 1, 1)
    assert not found.cover("AF601", 1, 1)


def test_empty_brackets_name_nothing_and_so_switch_nothing_off() -> None:
    assert not suppressions(b"x = 1  # autofuse: ignore[]\n").cover("AF101", 1, 1)
    assert not suppressions(b"x = 1  # autofuse: ignore-file[]\n").cover("AF101", 1, 1)


def test_a_whole_file_can_be_switched_off_from_any_line() -> None:
    assert suppressions(b"x = 1\n# autofuse: ignore-file\n").cover("AF101", 1, 1)
    some = suppressions(b"# autofuse: ignore-file[AF3]\n")
    assert some.cover("AF301", 7, 9)
    assert not some.cover("AF101", 7, 9)


@pytest.mark.parametrize("comment", ["#autofuse:ignore", "#  autofuse:  ignore", "# noqa: E501  # autofuse: ignore"])
def test_spacing_and_other_comments_beside_it_do_not_matter(comment: str) -> None:
    assert suppressions(f"x = 1  {comment}\n".encode()).cover("AF101", 1, 1)


@pytest.mark.parametrize("comment", ["# autofuse: ignored", "# autofuse: ignore-files", "# please autofuse, ignore"])
def test_what_only_looks_like_it_switches_nothing_off(comment: str) -> None:
    assert suppressions(f"x = 1  {comment}\n".encode()) == Suppressions()


def test_text_in_a_string_is_no_comment() -> None:
    assert suppressions(b's = """\n# autofuse: ignore-file\n"""\nt = "# autofuse: ignore"\n') == Suppressions()


@pytest.mark.parametrize(
    "source", [b"\xef\xbb\xbfx = 1  # autofuse: ignore\r\n", b"# coding: latin-1\nx = '\xe9'  # autofuse: ignore"]
)
def test_encodings_and_line_ends_are_read_as_python_reads_them(source: bytes) -> None:
    assert suppressions(source).cover("AF101", 1, 2)
