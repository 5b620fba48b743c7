"""The selection of tests: the fast loop covers every folder, and the default run every family of spellings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.selection import HERE, left_out, not_fast
from tests.spellings.harness import LOOKALIKES, SPELLED, Spelling, by_night, family

# Their tests train models or generate programs, which takes too long for the fast loop.
WITHOUT_CORE = {"benchmarks", "examples", "metamorphic"}
EVERY = (*SPELLED, *LOOKALIKES)
FOLDERS = sorted({p.relative_to(HERE).parts[0] for p in HERE.rglob("test_*.py") if p.parent != HERE} - WITHOUT_CORE)


def test_every_file_that_the_fast_loop_leaves_out_exists() -> None:
    assert [str(p) for p in sorted(not_fast()) if not p.is_file()] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_fast_loop_covers_every_folder(folder: str) -> None:
    files = set((HERE / folder).rglob("test_*.py"))
    assert files - not_fast() or any("mark.fast" in f.read_text() for f in files)


def test_a_left_out_file_is_imported_only_if_it_has_a_test_marked_fast(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pytestconfig.option, "markexpr", "fast")
    out, new = HERE / "test_spellings_text.py", HERE / "match" / "test_matcher.py"
    assert (left_out(out, pytestconfig), left_out(new, pytestconfig)) == (True, False)
    some = HERE / "fx" / "session" / "test_optimize.py"
    assert some in not_fast() and not left_out(some, pytestconfig)
    monkeypatch.setattr(pytestconfig.option, "markexpr", "")
    assert not left_out(out, pytestconfig)


def test_every_family_of_spellings_is_in_the_default_run() -> None:
    chosen = {s for s in EVERY if _key(s) not in by_night()}
    assert {family(s) for s in chosen} == {family(s) for s in EVERY}
    assert {s.rule for s in SPELLED if s in chosen} == {s.rule for s in SPELLED}


def test_every_entry_of_by_night_is_a_spelling() -> None:
    assert by_night() - {_key(s) for s in EVERY} == set()
    assert len(EVERY) / 2 < len(by_night()) < len(EVERY) * 4 / 5


def _key(s: Spelling) -> tuple[str, str]:
    return s.path.stem, s.name
