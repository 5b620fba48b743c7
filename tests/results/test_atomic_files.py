"""Files are replaced completely or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from autofuse.results.atomic_files import put, replace


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
