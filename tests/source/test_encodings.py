"""Unusual files and conditions: encodings, odd bytes, links, permissions, other processes, interruptions."""

from __future__ import annotations

import ast
import cProfile
import os
import pstats
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autofuse.cli import main
from autofuse.source.write.statement_ranges import Text, lines_of

ATTENTION = """\
import torch


def attend(q, k, v):
    s = q @ k.mT / q.size(-1) ** 0.5  # é
    return torch.softmax(s, dim=-1) @ v, "é"
"""
FUSED = b"scaled_dot_product_attention("


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.autofuse]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rewrite_file(content: bytes) -> bytes:
    path = Path("model.py")
    path.write_bytes(content)
    assert main(["rewrite", "model.py"]) == 0
    ast.parse(after := path.read_bytes())
    assert main(["rewrite", "--check", "model.py"]) == 0
    return after


@pytest.mark.parametrize(
    ("cookie", "encoding"),
    [
        ("# -*- coding: latin-1 -*-\n", "latin-1"), ("#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\n", "cp1252"),
        ("# coding: utf-8\n", "utf-8"), ("# coding=iso-8859-15\n", "iso-8859-15"), ("", "utf-8"), ("", "utf-8-sig"),
        ("# coding: utf-8\n", "utf-8-sig"), ("# coding: mac-roman\n", "mac-roman"),
    ],
)  # fmt: skip
def test_the_declared_encoding_of_a_file_is_read_and_kept(cookie: str, encoding: str) -> None:
    after = rewrite_file((cookie + "# é\n" + ATTENTION).encode(encoding))
    text = after.decode(encoding)
    assert text.startswith(cookie + "# é\n") and '), "é"\n' in text and FUSED in after


def test_an_operand_after_a_character_of_several_bytes_keeps_its_text() -> None:
    line = "    return 'é', torch.softmax(parts( 'ü' ) @ parts( 'ö' ).mT, -1) @ parts( 'ä' )\n"
    before = f"# coding: latin-1\nimport torch\nfrom x import parts\n\n\ndef f():\n{line}"
    after = rewrite_file(before.encode("latin-1")).decode("latin-1")
    assert "parts( 'ü' )" in after and "parts( 'ö' )" in after and "parts( 'ä' )" in after


@pytest.mark.parametrize("encoding", ["shift_jis", "gbk", "euc_jp", "big5", "koi8_r"])
def test_characters_of_several_bytes_are_not_split(encoding: str) -> None:
    word = "Я" if encoding == "koi8_r" else "表"
    before = f"# coding: {encoding}\n" + ATTENTION.replace("é", word)
    assert f'"{word}"' in rewrite_file(before.encode(encoding)).decode(encoding)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\x0c\n",
        b"#",
        b"\\\n",
        b"\xef\xbb\xbf",
        b"# torch\r",
        b"torch",
        b"\t\n# softmax of torch",
        b"\r\n\r\n",
    ],
)
def test_an_almost_empty_file_does_not_change(content: bytes) -> None:
    Path("model.py").write_bytes(content)
    assert main(["rewrite", "model.py"]) in (0, 2)
    assert Path("model.py").read_bytes() == content


def test_form_feeds_tabs_and_a_missing_last_newline_stay() -> None:
    before = "\x0c\n" + ATTENTION.replace("    ", "\t").replace("\n\n\ndef", "\n\x0c\n\ndef").rstrip("\n")
    after = rewrite_file(before.encode()).decode()
    assert after.startswith("\x0c\nimport torch\n\x0c\n\ndef") and "\n\treturn" in after and after.endswith('"é"')


def test_a_line_of_a_million_characters_and_ten_thousand_lines_take_less_than_ten_seconds() -> None:
    many = "".join(f"def f{i}(x):\n    y = x * {i}\n    return [y, '{i}']\n\n\n" for i in range(2000))
    start = time.process_time()
    after = rewrite_file(f"x = '{'a' * 1_000_000}'\n{ATTENTION}{many}".encode())
    assert FUSED in after and time.process_time() - start < 10


def test_time_grows_linearly_with_the_number_of_edits() -> None:
    function = ATTENTION.partition("\n\n\n")[2]

    def calls(count: int) -> int:
        """The number of function calls. Unlike the time, it does not depend on the machine."""
        text = "import torch\n" + "".join(function.replace("attend", f"attend{i}") for i in range(count))
        with cProfile.Profile() as profile:
            assert rewrite_file(text.encode()).count(FUSED) == count
        total: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
        return total

    calls(2)
    assert calls(80) < 5 * calls(20)


@pytest.mark.parametrize(
    "content",
    [b"import torch.softmax\n\xff\n", b"# coding: nonsense\nimport torch.softmax\n", b"import torch.softmax\n\0"],
)
def test_a_file_that_cannot_be_decoded_is_reported_and_other_files_are_rewritten(
    content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.py").write_bytes(content)
    Path("good.py").write_text(ATTENTION)
    assert main(["rewrite", "."]) == 2
    error = capsys.readouterr().err
    assert "bad.py" in error and "Traceback" not in error and "internal" not in error
    assert Path("bad.py").read_bytes() == content and FUSED in Path("good.py").read_bytes()


def test_a_folder_may_be_named_like_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.py").mkdir()
    Path("model.py/inner.py").write_text(ATTENTION)
    Path("nb.ipynb").mkdir()
    assert main(["rewrite", "."]) == 0
    assert FUSED in Path("model.py/inner.py").read_bytes()


def test_a_circular_link_and_a_broken_link_are_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    Path("circle.py").symlink_to("circle.py")
    Path("nowhere.py").symlink_to("gone.py")
    Path("good.py").write_text(ATTENTION)
    assert main(["check", "."]) == 1
    assert main(["check", "circle.py"]) == 2
    assert "circle.py" in capsys.readouterr().err


def test_pipes_in_a_folder_are_not_opened() -> None:
    os.mkfifo("pipe.py")  # opening it would block, because it has no writer
    assert main(["check", "."]) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_without_write_permission_keeps_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    Path("locked").mkdir()
    path = Path("locked/model.py")
    path.write_text(ATTENTION)
    Path("locked").chmod(0o555)
    try:
        assert main(["rewrite", "locked"]) == 2
        assert path.read_text() == ATTENTION
        assert "locked/model.py: cannot be written: Permission denied." in capsys.readouterr().err
    finally:
        Path("locked").chmod(0o755)


def write_files(count: int) -> list[Path]:
    paths = [Path(f"m{i:03}.py") for i in range(count)]
    for path in paths:
        path.write_text(ATTENTION * 3)
        path.chmod(0o640)
    return paths


def are_whole(paths: list[Path]) -> bool:
    """Whether every file is unchanged or fully rewritten and keeps its mode, and no other file exists."""
    assert sorted(p.name for p in Path().iterdir()) == sorted([*(p.name for p in paths), "pyproject.toml"])
    for path in paths:
        text = path.read_text()
        assert text == ATTENTION * 3 or text.count("scaled_dot_product_attention(") == 3, path
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    return True


def test_two_runs_at_once_leave_whole_files() -> None:
    paths = write_files(30)
    command = [sys.executable, "-m", "autofuse", "rewrite", "."]
    runs = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [run.communicate()[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], errors
    assert are_whole(paths) and all(FUSED in p.read_bytes() for p in paths)


def test_an_interrupted_run_leaves_whole_files() -> None:
    paths = write_files(60)
    command = [sys.executable, "-m", "autofuse", "rewrite", "."]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    # While Python starts, Python itself handles Ctrl-C. So wait for the first files, and not for a fixed time.
    while run.poll() is None and not any(FUSED in p.read_bytes() for p in paths[:5]):
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    _, error = run.communicate()
    assert run.returncode in (0, 130) and "Traceback" not in error, error
    assert any(FUSED in p.read_bytes() for p in paths)
    assert are_whole(paths)


@pytest.mark.slow
def test_an_interruption_after_the_summary_has_no_effect() -> None:
    """If Ctrl-C arrives while Python shuts down, the process must not end by the signal: all files are written."""
    codes = set()
    for delay in (0.0, 0.02, 0.04, 0.06, 0.08, 0.1):
        paths = write_files(3)
        command = [sys.executable, "-m", "autofuse", "rewrite", "."]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert run.stderr is not None
        summary = run.stderr.readline()  # the last output of a run
        time.sleep(delay)
        run.send_signal(signal.SIGINT)
        _, error = run.communicate()
        codes.add(run.returncode)
        assert "3 files" in summary and error == ""
        assert are_whole(paths)
    assert codes <= {0, 130}


def test_a_text_converts_back_to_its_bytes() -> None:
    for content in (
        b"\xef\xbb\xbfx = 1\r\n",
        b"# coding: latin-1\n\xe9",
        b"# coding: latin-1\na\rb\x0cc\x85",
        "a\u2028b\n".encode(),
    ):
        text = Text.of(content)
        assert text.with_content(text.content) == content
        assert "".join(text.lines) == text.content
    assert lines_of("a\x0cb\r\nc\rd\n\n") == ["a\x0cb\r\n", "c\r", "d\n", "\n"]
