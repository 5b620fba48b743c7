"""Files are replaced completely or not at all."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from autofuse.results.atomic_files import put, replace
from autofuse.results.temporary_files import remove_leftovers


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o4750])
def test_the_content_changes_and_the_mode_stays(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "model.py"
    path.write_bytes(b"old")
    path.chmod(mode)
    replace(str(path), b"new\r\n")
    assert path.read_bytes() == b"new\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    made, other = tmp_path / "made.json", tmp_path / "other.json"
    other.touch()
    put(str(made), b"one")
    assert (made.read_bytes(), made.stat().st_mode) == (b"one", other.stat().st_mode)
    assert sorted(tmp_path.iterdir()) == [made, other]


def test_an_existing_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    path.write_bytes(b"old")
    path.chmod(0o600)
    put(str(path), b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)


def test_a_chain_of_links_leads_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    real, middle, link = tmp_path / "a" / "real.py", tmp_path / "a" / "middle.py", tmp_path / "link.py"
    real.write_bytes(b"old")
    middle.symlink_to("real.py")
    link.symlink_to("a/middle.py")
    replace(str(link), b"new")
    assert (real.read_bytes(), link.is_symlink(), middle.is_symlink()) == (b"new", True, True)


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.py"
    path.write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.py"]


def test_a_deleted_file_is_not_created_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace(str(tmp_path / "gone.py"), b"new")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_write_protected_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_bytes(b"old")
    path.chmod(0o444)
    with pytest.raises(PermissionError):
        replace(str(path), b"new")
    assert path.read_bytes() == b"old"


_WRITING = ("atomic_files.py", "temporary_files.py", "file_attributes.py")


def _killed_at(step: int, path: str, content: bytes) -> bool:
    """Replaces a file in a child process, which is killed at a line of the code. Returns whether it was killed."""
    child = os.fork()
    if child == 0:
        left = iter(range(step))

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if not frame.f_code.co_filename.endswith(_WRITING):
                return None
            if event == "line" and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        replace(path, content, expected=None)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forked processes")
def test_a_process_that_is_killed_at_any_line_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path, old, new = tmp_path / "model.py", b"old\n" * 3000, b"new\n" * 5000
    results, step = list[bytes](), 0
    path.write_bytes(old)
    path.chmod(0o640)
    while _killed_at(step, str(path), new):
        results.append(path.read_bytes())
        assert results[-1] in (old, new) and path.stat().st_mode & 0o777 == 0o640
        others = {p.name for p in tmp_path.iterdir()} - {"model.py"}
        assert all(n.startswith(".autofuse-") and n.endswith(".tmp") for n in others) and len(others) <= 1
        remove_leftovers(str(tmp_path))
        assert [p.name for p in tmp_path.iterdir()] == ["model.py"]
        path.write_bytes(old)
        step += 1
    assert step > 40 and {old, new} == set(results) and path.read_bytes() == new
