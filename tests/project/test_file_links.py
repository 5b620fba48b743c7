"""Unusual entries of a folder: links of both kinds, pipes, devices, sockets, and names with control characters."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from autofuse.cli import main

ATTENTION = """\
import torch


def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v
"""
FUSED = "scaled_dot_product_attention("
NOBODY = 65534


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder. Tests put files that do not belong to it into its parent folder."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "pyproject.toml").write_text("[tool.autofuse]\n")
    monkeypatch.chdir(tmp_path / "tree")
    return tmp_path / "tree"


def model(path: str | Path) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(ATTENTION)
    return Path(path)


# links


@pytest.mark.parametrize(
    "target",
    ["../outside.py", "../other/deep/model.py", ".venv/lib/x.py", ".git/x.py", "my_env/x.py"],
)
def test_a_file_behind_a_link_out_of_the_tree_is_not_edited(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    real = model(target)
    Path("my_env").mkdir(exist_ok=True)
    Path("my_env/pyvenv.cfg").touch()
    Path("link.py").symlink_to(target)
    own = model("own.py")
    assert main(["rewrite", "--check", "."]) == 1
    assert main(["rewrite", "."]) == 0
    assert real.read_text() == ATTENTION and Path("link.py").is_symlink() and FUSED in own.read_text()
    said = capsys.readouterr().err
    assert "link.py: not rewritten: it is a link to" in said and os.path.realpath(real) in said
    assert main(["rewrite", "--check", "."]) == 0  # the check reports no edit for a file that is not edited
    assert main(["rewrite", "--diff", "."]) == 0 and FUSED not in capsys.readouterr().out
    assert main(["rewrite", "link.py"]) == 0  # the user names the link itself
    assert FUSED in real.read_text() and Path("link.py").is_symlink()


def test_an_excluded_file_behind_a_link_is_not_edited() -> None:
    Path("pyproject.toml").write_text('[tool.autofuse]\nexclude = ["old/deep"]\n')
    real = model("old/deep/model.py")
    Path("link.py").symlink_to(real)
    assert main(["rewrite", "."]) == 0
    assert real.read_text() == ATTENTION


def test_a_file_behind_a_link_within_the_tree_is_edited_once(capsys: pytest.CaptureFixture[str]) -> None:
    real, store = model("real/model.py"), model("store/5f3a")
    Path("a.py").symlink_to("real/model.py")
    Path("b.py").symlink_to("a.py")
    Path("c.py").symlink_to("store/5f3a")  # the search finds only the link
    Path("d.py").symlink_to("store/5f3a")
    assert main(["rewrite", "."]) == 0
    assert FUSED in real.read_text() and FUSED in store.read_text()
    assert all(Path(name).is_symlink() for name in ("a.py", "b.py", "c.py", "d.py"))
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["c.py: 1 edit", "real/model.py: 1 edit"]
    assert printed.err == "2 edits made in 2 files\n"


def test_a_tree_that_is_named_through_a_link_is_edited(tmp_path: Path) -> None:
    real = model("model.py")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "tree")
    assert main(["rewrite", str(tmp_path / "elsewhere")]) == 0
    assert FUSED in real.read_text()


def test_links_to_folders_are_not_followed() -> None:
    real = model("../other/model.py")
    Path("other").symlink_to("../other")
    assert main(["rewrite", "."]) == 0
    assert real.read_text() == ATTENTION


def test_a_hard_link_keeps_the_old_text_and_this_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    outside = model("../outside.py")
    os.link(outside, "model.py")
    assert main(["rewrite", "."]) == 0
    assert FUSED in Path("model.py").read_text() and outside.read_text() == ATTENTION
    assert "model.py: has other names (hard links), which keep the old text." in capsys.readouterr().err


# entries that are not files


def make_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


MAKERS = {
    "a pipe": os.mkfifo,
    "a socket": make_socket,
    "a device": lambda path: os.symlink("/dev/zero", path),
}


@pytest.mark.parametrize("name", ["x.py", "x.ipynb", "x"])
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("command", ["check", "rewrite"])
def test_a_pipe_or_socket_is_refused_and_other_files_are_processed(
    name: str, kind: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    MAKERS[kind](name)
    good = model("good.py")
    assert main([command, name, "good.py"]) == 2
    printed = capsys.readouterr()
    assert f"{name}: cannot be read: it is {kind}, not a file." in printed.err and "good.py" in printed.out
    assert main([command, "."]) == (1 if command == "check" else 0)  # in a folder they are ignored
    assert FUSED in good.read_text() or command == "check"


def test_a_device_is_refused_with_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "/dev/zero", "/dev/null"]) == 2
    assert capsys.readouterr().err.count("it is a device, not a file.") == 2


@pytest.mark.parametrize("kind", MAKERS)
def test_a_configuration_that_is_not_a_file_ends_the_run(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    model("sub/model.py")
    MAKERS[kind]("sub/pyproject.toml")
    assert main(["check", "."]) == 2
    assert f"it is {kind}, not a file." in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[tool.autofuse]\nx = " + "[" * 5000, f"[tool.autofuse]\nx = {'9' * 5000}\n"])
def test_a_configuration_that_python_cannot_parse_is_reported(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text(text)
    assert main(["check", "."]) == 2
    assert "pyproject.toml: is not valid TOML" in capsys.readouterr().err


def test_a_huge_file_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with open("large.py", "wb") as file:
        file.truncate(10**12)  # sparse
    assert main(["check", "."]) == 2
    assert "large.py: cannot be read: it is larger than 256 MiB." in capsys.readouterr().err


def test_a_tree_deeper_than_the_recursion_limit_is_searched(tree: Path) -> None:
    depth = 1100
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")
    Path("x.py").write_text(ATTENTION)
    os.chdir(tree)
    assert main(["rewrite", "."]) == 0
    path = os.path.join(*["d"] * depth, "x.py")
    assert FUSED in Path(path).read_text()
    assert main(["check", path]) == 0
    subprocess.run(["rm", "-r", "d"], check=True)  # pytest cannot remove such a deep folder


def run_without_privileges(arguments: list[str]) -> tuple[int, str]:
    """The exit code and all output of a run without root's permissions. Imports happen before the user changes."""
    main(["check", "good.py"])
    sys.stdout.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            with os.fdopen(writing, "w") as out, redirect_stdout(out), redirect_stderr(out):
                code = main(arguments)
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as out:
        printed = out.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), printed


def test_a_folder_without_permission_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # only root can read the folders of pytest
        Path(folder).chmod(0o755)
        monkeypatch.chdir(folder)
        Path("pyproject.toml").write_text("[tool.autofuse]\n")
        check_folders_without_permission()


def check_folders_without_permission() -> None:
    model("secret/x.py")
    model("locked/x.py")
    good = model("good.py")
    Path("secret").chmod(0)
    Path("locked").chmod(0o444)
    Path("model.py").touch()
    for path in (Path(), *Path().rglob("*")) if os.geteuid() == 0 else ():
        os.chown(path, NOBODY, NOBODY)
    for named in (["."], ["secret", "locked", "good.py"]):
        code, printed = run_without_privileges(["check", *named])
        assert code == 2 and "Traceback" not in printed, printed
        for folder in ("secret", "locked"):
            assert f"{folder}: this folder cannot be read: Permission denied." in printed
        assert "good.py" in printed
    Path("secret").chmod(0o700)
    Path("locked").chmod(0o700)
    assert good.read_text() == ATTENTION


# names

NAMES = [
    *("a\nb.py", "a\rb.py", "\x1b[31mred\x1b[0m.py", "\x1b]0;title\x07.py", "\u202egpj.py", "a\u2028b.py"),
    *("\x9b31m.py", b"\xff.py", "::warning::x.py", "a\tb.py"),
]


@pytest.mark.parametrize("name", NAMES)
def test_control_characters_in_a_file_name_are_escaped_in_all_output(
    name: str | bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model(os.fsdecode(name))
    commands = [
        ["check", "."], ["check", "--declined", "."], ["check", "--format", "github", "."],
        ["check", "--format", "json", "."], ["rewrite", "--diff", "."], ["check", f"{path}x"], ["rewrite", "."],
    ]  # fmt: skip
    for command in commands:
        main(command)
        printed = capsys.readouterr()
        for line in (printed.out + printed.err).split("\n"):
            assert line.replace("\t", "").isprintable(), (command, line)
            assert not line.startswith("::") or command[:3] == ["check", "--format", "github"]
        assert "_tokenize" not in printed.err
    assert FUSED in path.read_text()
    path.write_text("import torch\ndef f(:\n    x.softmax(-1) @ v\n")
    assert main(["check", "."]) == 2
    assert all(line.isprintable() for line in capsys.readouterr().err.split("\n"))


def test_control_characters_in_a_folder_name_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a\n\x1b[2J").mkdir()
    assert main(["check", "a\n\x1b[2J"]) == 0
    Path("a\n\x1b[2J/pyproject.toml").write_text(
        "[tool.autofuse]\nrules = ['x\x1b']\n".replace("\x1b", "\\u001b").replace("'", '"')
    )
    assert main(["check", "a\n\x1b[2J"]) == 2
    said = capsys.readouterr().err
    assert "a\\n\\x1b[2J" in said and "\x1b" not in said
