"""Tests that `rewrite` keeps the user's files safe: changes, kills, other runs, full disks, attributes, leftovers."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from autofuse.cli import main
from autofuse.results import temporary_files
from autofuse.results.atomic_files import ChangedMeanwhile, replace
from autofuse.results.temporary_files import remove_leftovers, temporary_next_to

ATTENTION = """\
import torch


def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v
"""
FUSED = "scaled_dot_product_attention("
REWRITE = [sys.executable, "-m", "autofuse", "rewrite", "."]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.autofuse]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tree(count: int) -> list[Path]:
    paths = [Path(f"m{i:03}.py") for i in range(count)]
    for path in paths:
        path.write_text(ATTENTION)
    return paths


def are_whole(paths: list[Path]) -> bool:
    return all(p.read_text() == ATTENTION or p.read_text().count(FUSED) == 1 for p in paths)


def leftovers() -> list[str]:
    return sorted(str(p) for p in Path().rglob(".autofuse-*"))


# files that change during a run


@pytest.mark.parametrize("change", ["other text", "", ATTENTION + "# mine\n"])
def test_a_file_that_changed_after_it_was_read_is_not_overwritten(change: str) -> None:
    path = Path("model.py")
    path.write_text(change)
    with pytest.raises(ChangedMeanwhile):
        replace("model.py", b"new", expected=ATTENTION.encode())
    assert path.read_text() == change and leftovers() == []


def test_a_file_that_already_has_the_new_text_is_not_written() -> None:
    path = Path("model.py")
    path.write_text("new")
    before = path.stat().st_ino
    assert replace("model.py", b"new", expected=b"old") is False
    assert path.stat().st_ino == before and leftovers() == []


def test_a_change_during_a_run_is_reported_and_kept() -> None:
    """An editor saves the last of many files while the first ones are written."""
    paths = tree(60)
    run = subprocess.Popen(REWRITE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    run.stdout.readline()  # the first file is written now
    mine = {p: ATTENTION.replace("attend", "mine") for p in paths[-20:]}
    for path, text in mine.items():
        path.write_text(text)
    _, error = run.communicate()
    assert run.returncode in (0, 2) and "Traceback" not in error
    for path in mine:  # read before the change: reported and kept; read after it: rewritten
        text = path.read_text()
        is_reported = f"{path}: not written, because it changed after it was read. Run autofuse again." in error
        assert "mine" in text and (is_reported or FUSED in text), (path, error)
    assert leftovers() == []
    assert main(["rewrite", "."]) == 0 and all(FUSED in p.read_text() for p in paths)


def test_the_exit_code_is_2_after_a_change(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tree(2)
    real = Path.read_text(first)
    from autofuse.project.run import RewriteRun

    rewrite = RewriteRun.rewrite

    def edited_meanwhile(*arguments: object, **named: object) -> object:
        result = rewrite(*arguments, **named)  # type: ignore[arg-type]
        first.write_text(real + "# mine\n")
        return result

    monkeypatch.setattr(RewriteRun, "rewrite", edited_meanwhile)
    assert main(["rewrite", "."]) == 2
    assert first.read_text() == ATTENTION + "# mine\n" and FUSED in second.read_text()
    assert "m000.py: not written, because it changed after it was read" in capsys.readouterr().err


def test_concurrent_runs_do_not_report_changes_of_each_other() -> None:
    paths = tree(30)
    runs = [subprocess.Popen(REWRITE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [run.communicate()[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], errors
    assert all(p.read_text().count(FUSED) == 1 for p in paths) and leftovers() == []


# killed runs


def members(group: int) -> list[int]:
    """Returns the ids of the running processes of a group."""
    processes = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(of) == group and state not in "ZX":
            processes.append(int(entry.name))
    return processes


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_a_killed_run_loses_nothing_and_the_next_one_cleans_up() -> None:
    """Kills runs at random moments. Their forked processes end within a bounded time."""
    chance, until, kills = random.Random(0), time.monotonic() + 20, 0
    while time.monotonic() < until and kills < 6:
        paths = tree(100)  # several processes
        run = subprocess.Popen(REWRITE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        assert run.stdout is not None
        run.stdout.readline()  # it writes
        time.sleep(chance.random() * 0.1)
        run.kill()
        run.wait()
        kills += 1
        assert are_whole(paths)
        deadline = time.monotonic() + 20
        while members(run.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert members(run.pid) == []
    Path(".autofuse-0123456789abcdef.tmp").write_text(ATTENTION)  # if no kill left one
    assert main(["check", "."]) in (0, 1) and leftovers() != []  # `check` neither removes nor reads leftovers
    assert main(["rewrite", "--check", "."]) in (0, 1) and leftovers() != []
    assert main(["rewrite", "."]) == 0
    assert all(FUSED in p.read_text() for p in paths) and leftovers() == []


def test_a_file_that_is_being_written_is_not_a_leftover() -> None:
    with temporary_next_to(os.path.abspath("model.py")) as (file, path):
        other = [sys.executable, "-c", "from autofuse.results.temporary_files import *; print(remove_leftovers('.'))"]
        assert subprocess.run(other, capture_output=True, text=True, check=True).stdout == "[]\n"
        assert os.path.exists(path) and not file.closed
    assert remove_leftovers(".") == [os.path.join(".", os.path.basename(path))]
    assert leftovers() == []


@pytest.mark.parametrize(
    "name", [".autofuse-notes.tmp", ".autofuse-0123456789abcdef.py", "autofuse-0123456789abcdef.tmp"]
)
def test_files_with_similar_names_are_kept(name: str) -> None:
    Path(name).touch()
    tree(1)
    assert main(["rewrite", "."]) == 0 and Path(name).exists()


def test_links_and_folders_named_like_a_leftover_are_kept() -> None:
    Path("precious").write_text("text")
    Path(".autofuse-0123456789abcdef.tmp").symlink_to("precious")
    Path(".autofuse-1123456789abcdef.tmp").mkdir()
    os.mkfifo(".autofuse-2123456789abcdef.tmp")
    remove_leftovers(".")
    assert Path("precious").read_text() == "text" and Path(".autofuse-1123456789abcdef.tmp").is_dir()


def test_without_file_locks_only_an_old_file_is_a_leftover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary_files, "_fcntl", None)  # as on Windows
    new, old = Path(".autofuse-0123456789abcdef.tmp"), Path(".autofuse-1123456789abcdef.tmp")
    new.touch()
    old.touch()
    os.utime(old, (0, 0))
    assert remove_leftovers(".") == [os.path.join(".", old.name)]


# full disks


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))


def test_a_file_that_cannot_be_written_stays_whole() -> None:
    long = ATTENTION + "# " + "x" * 400 + "\n"
    paths = [Path("long.py"), Path("short.py")]
    paths[0].write_text(long)
    paths[1].write_text("import torch\n\n\ndef f(x):\n    x = x / 1\n    return x * torch.sigmoid(x)\n")
    done = subprocess.run(REWRITE, capture_output=True, text=True, preexec_fn=limit_file_size, timeout=120)
    assert done.returncode == 2 and "long.py: cannot be written: File too large." in done.stderr, done.stderr
    assert paths[0].read_text() == long and "silu" in paths[1].read_text() and leftovers() == []


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_full_disk_loses_nothing() -> None:
    Path("disk").mkdir()
    script = (
        "mount -t tmpfs -o size=64k tmpfs disk || exit 77; cp pyproject.toml model.py disk; "
        f"cd disk; head -c 1000000 /dev/zero > filler; {sys.executable} -m autofuse rewrite . ; echo $?; "
        "cmp model.py ../model.py && ls -A | tr '\\n' ' '"
    )
    Path("model.py").write_text(ATTENTION)
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=120)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no disk can be mounted here")
    assert done.stdout == "2\nfiller model.py pyproject.toml ", done.stdout + done.stderr
    assert "model.py: cannot be written: No space left on device." in done.stderr
    assert "0 edits made in 0 files; 1 file with edits could not be written" in done.stderr
    assert "nothing to rewrite" not in done.stderr


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="only root mounts a disk")
def test_a_read_only_disk_is_reported() -> None:
    Path("disk").mkdir()
    script = (
        "mount -t tmpfs tmpfs disk || exit 77; cp pyproject.toml model.py disk; mount -o remount,ro disk || exit 77; "
        f"cd disk; {sys.executable} -m autofuse rewrite . ; echo $?; cmp model.py ../model.py && ls -A | tr '\\n' ' '"
    )
    Path("model.py").write_text(ATTENTION)
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=120)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no disk can be mounted here")
    assert done.stdout == "2\nmodel.py pyproject.toml ", done.stdout + done.stderr
    assert "model.py: cannot be written: it is write-protected." in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("command", [["check", "."], ["check", "--format", "json", "."], ["rewrite", "--diff", "."]])
def test_a_write_error_of_results_gives_a_message(command: list[str]) -> None:
    tree(1)
    with open("/dev/full", "w") as full:
        done = subprocess.run([*REWRITE[:3], *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "autofuse: the results cannot be written: No space left on device." in done.stderr


# attributes


def has_attributes() -> bool:
    if not hasattr(os, "setxattr"):
        return False
    Path("tried").touch()
    try:
        os.setxattr("tried", "user.tried", b"1")
    except OSError:
        return False
    finally:
        Path("tried").unlink()
    return True


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """Returns a POSIX access control list in Linux's format: version 2, then tag, rights and id of each entry."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)


_ANYBODY = 0xFFFFFFFF
ACL = access_list((1, 6, _ANYBODY), (2, 4, 1234), (4, 4, _ANYBODY), (16, 4, _ANYBODY), (32, 0, _ANYBODY))


def test_extended_attributes_and_access_lists_are_kept() -> None:
    if not has_attributes():
        pytest.skip("this folder has no extended attributes")
    (path,) = tree(1)
    os.setxattr(path, "user.comment", b"mine \xff")
    os.setxattr(path, "user.empty", b"")
    with suppress(OSError):
        os.setxattr(path, "system.posix_acl_access", ACL)
    before = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    mode = path.stat().st_mode
    assert main(["rewrite", "."]) == 0 and FUSED in path.read_text()
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == before
    assert path.stat().st_mode == mode


def test_a_rewritten_file_does_not_inherit_the_folders_access_list() -> None:
    (path,) = tree(1)
    path.chmod(0o640)
    try:
        os.setxattr(".", "system.posix_acl_default", ACL)
    except (OSError, AttributeError):
        pytest.skip("this folder has no access control lists")
    assert main(["rewrite", "."]) == 0 and FUSED in path.read_text()
    assert "system.posix_acl_access" not in os.listxattr(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_owner_and_group_are_kept() -> None:
    (path,) = tree(1)
    os.chown(path, 4321, 1234)
    path.chmod(0o2754)
    assert main(["rewrite", "."]) == 0 and FUSED in path.read_text()
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (4321, 1234, 0o2754)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("mode", "becomes"), [(0o6777, 0o777), (0o2776, 0o766), (0o676, 0o666), (0o666, 0o666), (0o646, 0o646)]
)
def test_without_permission_to_keep_the_owner_no_rights_are_added(
    mode: int, becomes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has another owner, and everybody may write to it and to its folder."""
    with tempfile.TemporaryDirectory() as shared:  # only root may read pytest's own folders
        monkeypatch.chdir(shared)
        Path(shared).chmod(0o777)
        (path,) = tree(1)
        os.chown(path, 4321, 1234)
        path.chmod(mode)
        assert as_nobody(lambda: replace(str(path), b"new", expected=ATTENTION.encode())) == 0
        status = path.stat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (65534, 65534, becomes)


def as_nobody(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(not hasattr(signal, "SIGTERM"), reason="there are no signals")
def test_a_terminated_run_leaves_whole_files() -> None:
    paths = tree(60)
    run = subprocess.Popen(REWRITE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    assert run.stdout is not None
    run.stdout.readline()
    run.terminate()
    run.communicate()
    assert are_whole(paths)
    assert main(["rewrite", "."]) == 0 and leftovers() == []
