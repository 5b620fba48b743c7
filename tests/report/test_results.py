"""Files of a profile: replaced whole, checked beforehand, one set for each process of a job."""

from pathlib import Path

import pytest

from autofuse.report.results import Results, put, unwritable


def test_a_file_is_written_and_replaced_and_nothing_else_is_left(tmp_path: Path):
    put(tmp_path / "a.json", "one")
    put(tmp_path / "a.json", "two, \ud800 too")
    assert (tmp_path / "a.json").read_text() == "two, \\ud800 too"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_what_cannot_be_written_is_known_beforehand(tmp_path: Path):
    assert unwritable(tmp_path / "new" / "folder") is None
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "file").write_text("")
    assert "cannot be written" in (unwritable(tmp_path / "file") or "")
    (tmp_path / "profile.json").mkdir()
    assert "cannot be replaced" in (unwritable(tmp_path) or "")


@pytest.mark.parametrize(("rank", "name"), [(0, "trace.json.gz"), (3, "trace.rank3.json.gz")])
def test_every_process_of_a_job_has_files_of_its_own(rank: int, name: str):
    assert Results(Path("out"), "text", rank).path("trace.json.gz") == Path("out") / name
