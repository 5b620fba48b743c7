"""The cache is the user's alone: modes, files of others, links and pipes in its place, kills and locks that stay."""

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
    """The folder that is taken where the user names none; no umask helps to keep it private."""
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


def test_folder_and_files_are_for_the_user_alone(place: Path) -> None:
    assert HERE.add({"a": 1})
    assert mode(place) == 0o700
    assert {mode(p) for p in place.iterdir()} == {0o600} and len(list(place.iterdir())) == 2  # the lock is one


def test_a_folder_that_was_open_is_closed(place: Path) -> None:
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
def test_what_belongs_to_somebody_else_is_not_trusted(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    HERE.add({"a": 1})
    os.chown(path(), NOBODY, NOBODY)
    assert HERE.read() == {} and "it belongs to somebody else" in caplog.text
    assert HERE.add({"b": 2}) and HERE.read() == {"b": 2}  # a file of ours took its place
    assert path().stat().st_uid == 0
    os.chown(place, NOBODY, NOBODY)
    assert HERE.read() == {} and not HERE.add({"c": 3})


@AS_ROOT
def test_a_lock_of_somebody_elses_is_not_waited_for(place: Path) -> None:
    HERE.add({"a": 1})
    os.chown(path().with_suffix(".lock"), NOBODY, NOBODY)
    assert not HERE.add({"b": 2}) and HERE.read() == {"a": 1}


def _link(where: Path) -> None:
    (where.parent.parent / "elsewhere").write_text("theirs")
    where.symlink_to("../elsewhere")


@pytest.mark.parametrize("make", [os.mkfifo, _link, os.mkdir], ids=["a pipe", "a link", "a folder"])
@pytest.mark.parametrize("suffix", [".json", ".lock"])
def test_what_stands_in_a_files_place_is_neither_followed_nor_waited_for(
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


def test_a_lock_that_another_process_never_gives_back_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(cache_module, "_PATIENCE", 0.2)
    HERE.add({"a": 1})
    with path().with_suffix(".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not HERE.add({"b": 2})
    assert "cannot be kept" in caplog.text
    assert HERE.add({"b": 2}) and HERE.read() == {"a": 1, "b": 2}


def test_writers_that_are_killed_leave_whole_files_and_what_they_left_goes(place: Path) -> None:
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


def test_clearing_leaves_nothing_of_ours(place: Path) -> None:
    HERE.add({"a": 1})
    (place / ".autofuse-0123456789abcdef.tmp").touch()
    clear()
    assert files() == [] and list(place.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"version": 1, "belongs_to": {"torch": "2"}, "entries": ' + "9" * 5000]
)
def test_a_damaged_file_is_ignored_whatever_is_in_it(text: str) -> None:
    HERE.add({"a": 1})
    path().write_text(text)
    assert HERE.read() == {} and main(["cache"]) == 0
    assert HERE.add({"b": 2}) and HERE.read() == {"b": 2}
