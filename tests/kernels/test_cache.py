"""The cache: a round trip, other versions, broken and foreign files, several writers, folders that cannot be used."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autofuse.kernels import cache as cache_module
from autofuse.kernels.cache import Cache, clear, files, folder

HERE = Cache("cpu", (("torch", "2"),))
WRITER = """\
import sys
from autofuse.kernels.cache import Cache
for i in range(20):
    Cache("cpu", (("torch", "2"),)).add({f"{sys.argv[1]} {i}": i})
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_module, "_logged", set())
    return tmp_path / "cache"


def path() -> Path:
    found = HERE.path
    assert found is not None
    return found


def test_an_added_entry_is_read_and_replaced_by_key() -> None:
    assert HERE.read() == {}
    assert HERE.add({"a": 1, "b": [2.5, None]})
    assert HERE.add({"a": 3})
    assert HERE.read() == {"a": 3, "b": [2.5, None]}
    assert json.loads(path().read_text())["belongs_to"] == {"torch": "2"}


def test_another_version_starts_a_new_file_and_the_old_one_stays() -> None:
    HERE.add({"a": 1})
    newer = Cache("cpu", (("torch", "3"),))
    assert newer.read() == {}
    newer.add({"a": 2})
    assert HERE.read() == {"a": 1}
    assert len(files()) == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"version": 1}', '{"version": 1, "entries": 3, "belongs_to": {}}']
)
def test_a_damaged_file_is_reported_once_and_overwritten(text: str, caplog: pytest.LogCaptureFixture) -> None:
    HERE.add({})
    path().write_text(text)
    with caplog.at_level(logging.WARNING, "autofuse"):
        assert HERE.read() == {}
        assert HERE.read() == {}
    assert len(caplog.records) == 1
    assert "ignored" in caplog.text
    HERE.add({"a": 1})
    assert HERE.read() == {"a": 1}


def test_a_file_of_another_machine_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    HERE.add({"a": 1})
    path().write_text(path().read_text().replace('"torch": "2"', '"torch": "1"'))
    assert HERE.read() == {}
    assert "belongs to something else" in caplog.text


def test_bytes_that_are_not_text_are_ignored() -> None:
    HERE.add({})
    path().write_bytes(b"\xff\xfe\x00")
    assert HERE.read() == {}


def test_processes_that_write_at_once_lose_nothing() -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(n)]) for n in range(3)]
    assert [w.wait(timeout=60) for w in writers] == [0, 0, 0]
    assert HERE.read() == {f"{n} {i}": i for n in range(3) for i in range(20)}
    assert [p.suffix for p in path().parent.iterdir() if p.name.startswith(".")] == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_cannot_be_written_to_does_no_harm(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    place.mkdir()
    place.chmod(0o500)
    assert not HERE.add({"a": 1})
    assert HERE.read() == {}
    assert "cannot write to" in caplog.text


def test_a_file_in_place_of_the_folder_does_no_harm(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    place.write_text("")
    assert not HERE.add({"a": 1})
    assert not HERE.add({"a": 1})
    assert HERE.read() == {}
    assert files() == []
    assert sum("cannot write to" in r.message for r in caplog.records) == 1


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert folder() == tmp_path / "cache"
    monkeypatch.delenv("AUTOFUSE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder() == tmp_path / "autofuse"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder() == tmp_path / ".cache" / "autofuse"


def test_clearing_removes_only_the_files_of_the_cache(place: Path) -> None:
    HERE.add({"a": 1})
    (place / "notes.txt").write_text("mine")
    assert clear() == [path()]
    assert [p.name for p in place.iterdir()] == ["notes.txt"]
    assert clear() == []
