"""Files of a profile: replaced whole, checked beforehand, one set for each process of a job."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from autofuse.cli.profile_results import CannotWriteResults, Results, put, unwritable
from autofuse.results.comparison import Interval
from tests.display.samples import gpt


def test_a_file_is_written_and_replaced_and_nothing_else_is_left(tmp_path: Path):
    put(tmp_path / "a.json", "one")
    put(tmp_path / "a.json", "two, \ud800 too")
    assert (tmp_path / "a.json").read_text() == "two, \\ud800 too"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_unwritable_outputs_are_reported_before_the_run(tmp_path: Path):
    assert unwritable(tmp_path / "new" / "folder") is None
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "file").write_text("")
    assert "cannot be written" in (unwritable(tmp_path / "file") or "")
    (tmp_path / "profile.json").mkdir()
    assert "cannot be replaced" in (unwritable(tmp_path) or "")


@pytest.mark.parametrize(("rank", "name"), [(0, "trace.json.gz"), (3, "trace.rank3.json.gz")])
def test_every_process_of_a_job_writes_its_own_files(rank: int, name: str):
    assert Results(Path("out"), "text", rank).path("trace.json.gz") == Path("out") / name


def options(folder: Path, fail_if: list[str], baseline: Path | None = None, strict: bool = False) -> Namespace:
    return Namespace(
        output=folder, format="text", fail_if=fail_if, strict=strict, anyway=False, baseline=baseline, export=[]
    )


@pytest.mark.parametrize(
    ("condition", "code"), [("mfu<0.9", 1), ("mfu<0.01", 0), ("step_seconds>0.2539", 0), ("time_ratio>1", 0)]
)
def test_conditions_also_apply_to_a_single_profile(tmp_path: Path, condition: str, code: int):
    assert Results.of(options(tmp_path, [condition])).finish(gpt()) == code


def test_a_condition_on_a_layer_that_does_not_exist_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Results.of(options(tmp_path, ["layer_share[h.*.attn]>0.3"])).finish(gpt()) == 1
    assert Results.of(options(tmp_path, ["layer_share[h.*.attm]>0.3"])).finish(gpt()) == 2
    assert "No layer is named 'h.*.attm'" in capsys.readouterr().err


def test_an_undecided_or_unknown_condition_fails_only_on_request(tmp_path: Path):
    assert Results.of(options(tmp_path, ["time_ratio>1"], strict=True)).finish(gpt()) == 1


@pytest.mark.parametrize(("condition", "code"), [("time_ratio>1.02", 1), ("time_ratio<1.02", 0)])
def test_against_a_baseline_ratios_are_known(
    tmp_path: Path, condition: str, code: int, capsys: pytest.CaptureFixture[str]
):
    slow = replace(gpt(), timing=replace(gpt().timing, seconds=(0.5,) * 30, interval=Interval(0.5, 0.5)))
    (tmp_path / "baseline.json").write_text(gpt().to_json())
    results = Results.of(options(tmp_path / "new", [condition], tmp_path / "baseline.json"))
    assert results.finish(slow) == code
    assert "regressed: 0.51x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fail_if", "baseline", "sentence"),
    [
        (["speed>1"], None, "no quantity speed"),
        (["mfu=1"], None, "is not a condition"),
        ([], "missing.json", "cannot be read"),
    ],
)
def test_bad_conditions_and_baselines_are_refused_before_anything_runs(
    tmp_path: Path, fail_if: list[str], baseline: str | None, sentence: str
):
    with pytest.raises(CannotWriteResults, match=sentence):
        Results.of(options(tmp_path, fail_if, tmp_path / baseline if baseline else None))
