"""The cache is private to the user: modes, other users' files, links and pipes in its place, kills, stale locks."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autofuse.cli import main
from autofuse.kernels import cache as cache_module
from autofuse.kernels.cache import Cache, clear, files

HERE = Cache("cpu", (("torch", "2"),))
FOREVER = """\
import itertools
from autofuse.kernels.cache import Cache
for i in itertools.count():
    Cache("cpu", (("torch", "2"),)).add({str(i % 50): "x" * 1000})
    print(flush=True)
"""
NOBODY = 65534
AS_ROOT = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The default folder, which must be private whatever the umask."""
    monkeypatch.delenv("AUTOFUSE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache_module, "_logged", set())
    umask = os.umask(0)
    yield tmp_path / "autofuse"
    os.umask(umask)


def path() -> Path:
    found = HERE.path
    assert found is not None
    return found


def mode(of: Path) -> int:
    return stat.S_IMODE(of.stat().st_mode)


def test_folder_and_files_are_private_to_the_user(place: Path) -> None:
    assert HERE.add({"a": 1})
    assert mode(place) == 0o700
    assert {mode(p) for p in place.iterdir()} == {0o600} and len(list(place.iterdir())) == 2  # the lock is one


def test_a_folder_that_was_not_private_becomes_private(place: Path) -> None:
    place.mkdir(mode=0o777)
    assert HERE.add({"a": 1}) and mode(place) == 0o700


def test_a_folder_that_the_user_named_keeps_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path / "shared"))
    assert HERE.add({"a": 1}) and mode(tmp_path / "shared") == 0o755 and mode(path()) == 0o600
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path / "made"))
    assert HERE.add({"a": 1}) and mode(tmp_path / "made") == 0o700


@AS_ROOT
def test_other_users_files_are_not_trusted(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    HERE.add({"a": 1})
    os.chown(path(), NOBODY, NOBODY)
    assert HERE.read() == {} and "it belongs to another user" in caplog.text
    assert HERE.add({"b": 2}) and HERE.read() == {"b": 2}  # a file of ours took its place
    assert path().stat().st_uid == 0
    os.chown(place, NOBODY, NOBODY)
    assert HERE.read() == {} and not HERE.add({"c": 3})


@AS_ROOT
def test_another_users_lock_is_not_waited_for(place: Path) -> None:
    HERE.add({"a": 1})
    os.chown(path().with_suffix(".lock"), NOBODY, NOBODY)
    assert not HERE.add({"b": 2}) and HERE.read() == {"a": 1}


def _link(where: Path) -> None:
    (where.parent.parent / "elsewhere").write_text("theirs")
    where.symlink_to("../elsewhere")


@pytest.mark.parametrize("make", [os.mkfifo, _link, os.mkdir], ids=["a pipe", "a link", "a folder"])
@pytest.mark.parametrize("suffix", [".json", ".lock"])
def test_links_and_pipes_in_a_files_place_are_neither_followed_nor_waited_for(
    make: Callable[[Path], object], suffix: str, place: Path
) -> None:
    place.mkdir()
    make(path().with_suffix(suffix))
    start = time.monotonic()
    kept = HERE.add({"a": 1})
    assert HERE.read() == ({"a": 1} if kept else {})
    assert main(["cache", "list"]) == 0 and time.monotonic() - start < 10
    if (place.parent / "elsewhere").exists():
        assert (place.parent / "elsewhere").read_text() == "theirs"


def test_waiting_for_a_stale_lock_ends(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(cache_module, "_PATIENCE", 0.2)
    HERE.add({"a": 1})
    with path().with_suffix(".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not HERE.add({"b": 2})
    assert "cannot write to" in caplog.text
    assert HERE.add({"b": 2}) and HERE.read() == {"a": 1, "b": 2}


def test_killed_writers_leave_intact_files_and_their_leftovers_are_removed(place: Path) -> None:
    chance, expected = random.Random(1), set(map(str, range(50)))
    for _ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", FOREVER], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(chance.random() * 0.1)
        writer.kill()
        writer.communicate()
        assert set(HERE.read()) <= expected and HERE.read()
    (place / ".autofuse-0123456789abcdef.tmp").touch()  # if no kill left one
    assert HERE.add({"0": 1})
    assert [p.name for p in place.iterdir() if p.suffix == ".tmp"] == []


def test_clearing_removes_all_files_of_the_cache(place: Path) -> None:
    HERE.add({"a": 1})
    (place / ".autofuse-0123456789abcdef.tmp").touch()
    clear()
    assert files() == [] and list(place.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"version": 1, "belongs_to": {"torch": "2"}, "entries": ' + "9" * 5000]
)
def test_a_damaged_file_is_ignored(text: str) -> None:
    HERE.add({"a": 1})
    path().write_text(text)
    assert HERE.read() == {} and main(["cache"]) == 0
    assert HERE.add({"b": 2}) and HERE.read() == {"b": 2}
