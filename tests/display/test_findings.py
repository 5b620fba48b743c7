"""Findings as lines, JSON and annotations; diffs as patches."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from autofuse.display.findings import annotation_of, describe_counts, diff_of, line_of
from autofuse.results.findings import FIELDS, Finding, as_json

FOUND = Finding(
    code="AF101", rule="HandWrittenAttention", path="src/model.py", line=3, end_line=7, column=9,
    symbol="Block.forward", status="safe", message="hand-written attention", reason="",
)  # fmt: skip


def test_a_line_has_place_message_and_status() -> None:
    text = "".join(text for text, _ in line_of(FOUND))
    assert text == "src/model.py:3:9: AF101 [safe] Block.forward: hand-written attention\n"


def test_a_reason_is_printed_once() -> None:
    because = dataclasses.replace(FOUND, reason="assumes much")
    assert "".join(t for t, _ in line_of(because)).endswith("hand-written attention (assumes much)\n")
    twice = dataclasses.replace(because, message="attention: assumes much")
    assert "".join(t for t, _ in line_of(twice)).endswith("attention: assumes much\n")


def test_the_json_has_the_documented_fields_in_their_order() -> None:
    printed = json.loads(json.dumps(as_json([FOUND])))
    assert printed["version"] == 1
    assert tuple(printed["findings"][0]) == FIELDS
    assert printed["findings"][0]["end_line"] == 7


def test_an_annotation_escapes_line_ends_and_separators() -> None:
    odd = dataclasses.replace(FOUND, path="a:b,c.py", message="100 %\nand more", status="report")
    assert annotation_of(odd) == (
        "::notice file=a%3Ab%2Cc.py,line=3,endLine=7,col=9,title=AF101 HandWrittenAttention::100 %25%0Aand more\n"
    )


def test_findings_are_counted_by_status() -> None:
    assert describe_counts([]) == "nothing found"
    assert describe_counts([FOUND]) == "1 finding: 1 safe"
    assert describe_counts([FOUND, dataclasses.replace(FOUND, status="report")]) == "2 findings: 1 safe, 1 report"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\nb\nc\n", b"a\nB\nc\n"),
        (b"a\r\nb\r\n", b"a\r\nB\r\n"),
        (b"a\nb", b"a\nB"),
        (b"a\nb", b"a\nb\n"),
        (b"a\x0cb\nc\n", b"a\x0cb\nC\n"),
        ("é\u2028b\nc\n".encode(), "é\u2028b\nC\n".encode()),
    ],
)
def test_patch_can_apply_a_diff(tmp_path: Path, before: bytes, after: bytes) -> None:
    (tmp_path / "model.py").write_bytes(before)
    patch = "".join(text for text, _ in diff_of("model.py", before, after)).encode()
    subprocess.run(["git", "apply", "-p0", "-"], input=patch, check=True, cwd=tmp_path)
    assert (tmp_path / "model.py").read_bytes() == after


def test_a_diff_is_read_in_the_encoding_of_the_file() -> None:
    before = b"# coding: latin-1\nx = '\xe9'\n"
    text = "".join(text for text, _ in diff_of("m.py", before, before.replace(b"x", b"y")))
    assert "-x = 'é'\n+y = 'é'\n" in text


def test_without_a_change_there_is_no_diff() -> None:
    assert list(diff_of("m.py", b"x\n", b"x\n")) == []
