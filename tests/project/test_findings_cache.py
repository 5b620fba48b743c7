"""Findings come from the cache if, and only if, everything that they depend on is unchanged."""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autofuse.cli import main
from autofuse.project import file_states
from autofuse.project.findings_cache import open_cache
from autofuse.results.entries import Entries

ATTENTION = """\
import torch


def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v
"""
# The norm is in another file, so the findings depend on that file.
BLOCK = """\
import torch
from layers import Norm


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm(8)

    def forward(self, x, y):
        x = x + y
        return self.norm(x), x
"""
LAYERS = """\
import torch


class Norm(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.eps = 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in (("pyproject.toml", "[tool.autofuse]\n"), ("plain.py", "import json\n"),
                       ("attention.py", ATTENTION), ("block.py", BLOCK), ("layers.py", LAYERS)):  # fmt: skip
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def files_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that runs read, in order."""
    from autofuse.project.run import RewriteRun

    read: list[str] = []
    check = RewriteRun.check_text

    def record_and_check(self: RewriteRun, source: bytes, file: object) -> object:
        read.append(file.path)  # type: ignore[attr-defined]
        return check(self, source, file)  # type: ignore[arg-type]

    monkeypatch.setattr(RewriteRun, "check_text", record_and_check)
    return read


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> tuple[int, str]:
        time.sleep(0.05)  # a file with a very recent modification time is not cached
        code = main(list(arguments))
        return code, capsys.readouterr().out

    return run_command


def test_a_second_run_reports_the_same_and_reads_nothing(project: Path, run: Run, files_read: list[str]) -> None:
    first = run("check", "--declined", ".")
    assert sorted(files_read) == ["attention.py", "block.py", "layers.py"]
    assert "AF101" in first[1]
    files_read.clear()
    assert run("check", "--declined", ".") == first
    assert files_read == []
    assert run("check", "--declined", "--no-cache", ".") == first
    assert sorted(files_read) == ["attention.py", "block.py", "layers.py", "plain.py"]


EVERY = {"attention.py", "block.py", "layers.py"}


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda project: (project / name).write_text(text)


CHANGES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "the file itself": (write("attention.py", ATTENTION + "\n"), {"attention.py"}),
    "a file that another one uses": (write("layers.py", LAYERS.replace("1e-6", "1e-5")), {"layers.py", "block.py"}),
    "a file that mentions no torch": (write("plain.py", "import attention\n"), {"block.py"}),
    "a new file": (write("new.py", "import layers\nlayers.Norm.forward = None\n"), {"block.py"}),
    "a file that is gone": (lambda p: (p / "plain.py").unlink(), {"block.py"}),
    "the configuration": (write("pyproject.toml", '[tool.autofuse]\nignore = ["AF4"]\n'), EVERY),
    "autofuse itself": (lambda p: None, EVERY),
}


@pytest.mark.parametrize("what", CHANGES)
def test_after_a_change_all_dependent_files_are_read_again(
    project: Path, run: Run, files_read: list[str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("check", ".")
    files_read.clear()
    change, least = CHANGES[what]
    change(project)
    if what == "autofuse itself":
        monkeypatch.setattr("autofuse.project.findings_cache.digest_own_code", lambda: "other code")
    found = run("check", "--declined", ".")
    assert least <= set(files_read)
    assert run("check", "--declined", "--no-cache", ".") == found


def test_an_independent_file_is_not_read_again_when_others_change(
    project: Path, run: Run, files_read: list[str]
) -> None:
    (project / "alone.py").write_text("import torch\n\n\ndef f(x):\n    return torch.relu(x)\n")
    run("check", ".")
    files_read.clear()
    (project / "layers.py").write_text(LAYERS + "\n")
    run("check", ".")
    assert "alone.py" not in files_read


def test_a_change_of_a_file_outside_the_run_counts_if_it_was_looked_up(
    project: Path, run: Run, files_read: list[str]
) -> None:
    run("check", "block.py")
    files_read.clear()
    run("check", "block.py")
    assert files_read == []
    (project / "layers.py").write_text(LAYERS.replace("rsqrt", "sqrt"))
    run("check", "block.py")
    assert files_read == ["block.py"]


SPOILED = {
    "cut off": lambda content: content[: len(content) // 2],
    "changed": lambda content: content.replace(b"AF101", b"AF102"),
    "empty": lambda content: b"",
    "no JSON": lambda content: b"0" * 40 + b"\nnothing",
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_damaged_entry_counts_as_missing(project: Path, run: Run, how: str) -> None:
    first = run("check", ".")
    kept = open_cache()
    assert kept is not None
    for _, _, path in kept.sizes():
        path.write_bytes(SPOILED[how](path.read_bytes()))
    assert run("check", ".") == first


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes of files are those of POSIX")
def test_only_the_user_can_read_the_cache(project: Path, run: Run) -> None:
    run("check", ".")
    kept = open_cache()
    assert kept is not None
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for _, _, path in kept.sizes()} == {0o600}


def test_a_change_of_a_users_rule_counts(project: Path, tmp_path: Path) -> None:
    rules = project / "my_rules"
    rules.mkdir()
    text = (
        "from autofuse import CallRule, Holds\n\n\nclass Mine(CallRule):\n"
        '    """A call of mine."""\n\n    code = "MY101"\n    calls = ("torch.relu",)\n    hint = "relu"\n'
    )
    (rules / "mine.py").write_text(text)
    before = file_states.digest_rule_sources([rules], set(sys.modules))
    assert file_states.digest_rule_sources([rules], set(sys.modules)) == before
    (rules / "mine.py").write_text(text + "\n")
    assert file_states.digest_rule_sources([rules], set(sys.modules)) != before


def test_concurrent_runs_leave_valid_entries(project: Path, run: Run) -> None:
    command = [sys.executable, "-m", "autofuse", "check", "--declined", "attention.py"]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(2)]
    said = [r.communicate()[0] for r in runs]
    assert len(set(said)) == 1
    assert run("check", "--declined", "attention.py")[1] == said[0]


def test_the_oldest_entries_are_removed_first(tmp_path: Path) -> None:
    kept = Entries(tmp_path / "files")
    for i in range(8):
        kept.put(f"e-{i}", {"text": "x" * 1000})
        os.utime(kept.folder / f"e-{i}.entry", (i, i))
    kept.trim(largest=4000)
    left = [i for i in range(8) if kept.get(f"e-{i}")]
    assert left == [6, 7] or left == [5, 6, 7]
    assert kept.clear() == len(left)
    assert not any(kept.get(f"e-{i}") for i in range(8))


def test_rewrite_does_not_read_cached_files_without_edits(project: Path, run: Run, files_read: list[str]) -> None:
    (project / "alone.py").write_text("import torch\n\n\ndef f(x):\n    return torch.relu(x)\n")
    before = {p: p.read_text() for p in project.glob("*.py")}
    run("check", ".")
    files_read.clear()
    code, said = run("rewrite", "--unsafe", "--diff", ".")
    assert "alone.py" not in files_read and "attention.py" in files_read
    assert (code, said) == run("rewrite", "--unsafe", "--diff", "--no-cache", ".")
    assert {p: p.read_text() for p in project.glob("*.py")} == before


def test_only_two_modules_of_the_codemod_open_other_files() -> None:
    """The cache needs the number of lookups of other files, so every lookup goes through two modules that count."""
    source = Path(file_states.__file__).parents[1] / "source"
    opens = ("read_bytes(", "read_text(", "open(", ".is_file(", "iterdir(", "os.stat(", "scandir(", ".glob(")
    asking = {
        str(f.relative_to(source))
        for f, word in itertools.product(source.rglob("*.py"), opens)
        if word in f.read_text()
    }
    asking.remove("write/line_length.py")  # it reads the line length; edits are not cached
    assert asking == {"capture/project_files.py", "evidence/other_files.py"}
