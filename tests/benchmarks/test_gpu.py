"""The GPU benchmark on a CPU with toy sizes: rows are right, stored, continued, and never mixed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from autofuse.results.profile import Profile
from benchmarks.cases import cases
from benchmarks.gpu.__main__ import SECTIONS, SHARES, main
from benchmarks.gpu.models import FULL, TOY
from benchmarks.gpu.operations import flops
from benchmarks.gpu.predictions import compare_with_measured, copy_seconds
from benchmarks.gpu.store import Results, Setting, Task
from benchmarks.gpu.training import model_flops

CPU = Setting(torch.device("cpu"), toy=True)
ROWS = (
    "roofs", "correctness/RMS norm/fp32", "operations/training/RMS norm",
    "devices/RMS norm", "models/restore", "predictions/RMS norm", "predictions/SwiGLU",
)  # fmt: skip


def rows(folder: Path) -> dict[str, Any]:
    return {row["key"]: row for row in json.loads((folder / "results.json").read_text())["rows"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one row of each kind, from two calls, the first of which had no time."""
    folder = tmp_path_factory.mktemp("gpu")
    patch = pytest.MonkeyPatch()
    patch.setenv("AUTOFUSE_CACHE_DIR", str(folder / "cache"))
    common = ["--out", str(folder), "--device", "cpu", "--toy"]
    training = ["training/llama-1b/eager", "training/llama-1b/autofuse", "training/llama-1b/Liger"]
    training += ["profiles/gpt2-124m/before", "libraries/gpt2/eager", "libraries/gpt2/SDPA"]
    try:
        assert main([*common, "--budget", "0", "--only", *ROWS]) == 0
        assert rows(folder) == {}
        assert main([*common, "--only", *ROWS, *training, "--without", "+ torch.compile"]) == 0
    finally:
        patch.undo()
    return folder


def test_no_row_fails(folder: Path) -> None:
    found = rows(folder)
    assert [row["failed"] for row in found.values() if "failed" in row] == []
    assert {key.partition("/")[0] for key in found} == set(SECTIONS)


def test_a_call_of_less_than_half_an_hour_reaches_every_section() -> None:
    assert set(SHARES) == set(SECTIONS) and sum(SHARES.values()) == pytest.approx(1.0)


def test_a_machine_with_one_device_is_reported(folder: Path) -> None:
    assert "no second device" in rows(folder)["devices/RMS norm"]["absent"]
    assert "There is no second device." in (folder / "results.md").read_text()


def test_kernels_are_timed_one_by_one_for_the_model(folder: Path) -> None:
    found = rows(folder)["predictions/RMS norm, backward/64"]
    assert found["seconds"] > 0 and found["width"] == 64 and found["host_seconds"] is None


@pytest.mark.night
def test_every_prediction_has_a_measurement(tmp_path: Path) -> None:
    """The model is asked in a process of its own, in which Triton compiles and does not interpret."""
    assert main(["--out", str(tmp_path), "--device", "cpu", "--toy", "--section", "predictions"]) == 0
    results = Results(tmp_path, CPU)
    assert [row for row in results.rows.values() if "failed" in row] == []
    compared = compare_with_measured(results)
    assert len(compared) == len(results.rows) - 3 == 18
    assert all(row.predicted > 0 and row.measured > 0 and row.share for row in compared)
    assert "Predicted as H100. Median error" in (tmp_path / "results.md").read_text()


def test_a_copy_of_another_size_is_on_the_line_through_the_measured_copies(tmp_path: Path) -> None:
    results = Results(tmp_path, CPU)
    assert copy_seconds(results.rows, 8) is None
    for moved, seconds in ((10, 2.0), (20, 3.0), (40, 6.0)):
        results.rows[f"predictions/copy/{moved}"] = {"moved": moved, "seconds": seconds}
    assert [copy_seconds(results.rows, moved) for moved in (10, 15, 30, 60)] == [2.0, 2.5, 4.5, 9.0]


@pytest.mark.night
def test_untimed_rows_run_in_several_processes_and_caches_are_filled_without_rows(tmp_path: Path) -> None:
    common = ["--out", str(tmp_path), "--device", "cpu", "--toy", "--only", "/GELU/", "--section", "correctness"]
    assert main([*common, "--workers", "2", "--warm"]) == 0
    assert not (tmp_path / "rows.jsonl").exists()
    assert main([*common, "--workers", "2"]) == 0
    assert set(rows(tmp_path)) == {"correctness/GELU/fp32", "correctness/GELU/bf16"}


def test_every_provider_is_right_or_has_a_reason_for_its_refusal(folder: Path) -> None:
    ways = rows(folder)["correctness/RMS norm/fp32"]["ways"]
    assert ways["autofuse.ops"]["right"] and ways["torch"]["right"]
    assert all(way.get("right") or way["refused"] for way in ways.values())
    assert {"triton", "liger"} <= set(ways)


def test_an_operation_is_timed_in_all_ways_with_its_least_traffic(folder: Path) -> None:
    row = next(row for key, row in rows(folder).items() if key.startswith("operations/training/RMS norm"))
    assert set(row["seconds"]) == {"autofuse.ops", "eager", "torch native", "torch.compile"}
    elements, width = 2 * 33 * 48, 48
    # forward: x, weight, result; backward: the same, the result's gradient being as large, and two gradients written
    assert row["bytes"] == 2 * (2 * (2 * elements + width) + elements + width)


def test_a_causal_mask_halves_the_flops_of_attention() -> None:
    case = next(case for case in cases("toy") if case.name == "attention, causal")
    batch, length, heads, head_dim = 2, 33, 3, 16
    assert flops(case, training=True) == 0.5 * 3 * 2 * (2 * batch * heads * length * length * head_dim)


def test_training_agrees_with_eager_and_reports_its_rate(folder: Path) -> None:
    found = rows(folder)
    eager, ours = found["training/llama-1b/eager"], found["training/llama-1b/autofuse"]
    assert ours["losses"] == pytest.approx(eager["losses"], rel=2e-2)  # bf16 weights
    assert ours["model_flops"] == eager["model_flops"] > 0
    assert eager["tokens_per_second"] == pytest.approx(64 / eager["seconds"])
    assert eager["mfu"] is None and "GPUs" in found["training/llama-1b/Liger"]["absent"]


def test_a_model_of_a_library_computes_its_own_loss(folder: Path) -> None:
    found = rows(folder)
    eager, other = found["libraries/gpt2/eager"], found["libraries/gpt2/SDPA"]
    assert other["losses"] == pytest.approx(eager["losses"], rel=2e-2)  # bf16 weights
    assert eager["tokens_per_second"] == pytest.approx(24 / eager["seconds"])
    assert eager["mfu"] is None and eager["sites"] == {}


def test_the_full_profile_is_stored_next_to_its_row(folder: Path) -> None:
    row = rows(folder)["profiles/gpt2-124m/before"]
    profile = Profile.from_dict(json.loads((folder / "profile-gpt2-124m-before.json").read_text()))
    assert row["rungs"] == {level.name: level.value for level in profile.ladder}
    assert row["attributed"]["backward"] > 0.95
    assert [note for note in row["notes"] if "busy with other programs" not in note] == []
    assert {"AF101", "AF203"} <= {place["rule"] for place in row["places"]}


def test_the_page_shows_every_section(folder: Path) -> None:
    page = (folder / "results.md").read_text()
    for title in ("Correctness", "Training steps", "Profiles", "Operations"):
        assert f"## {title}\n" in page
    assert "failed" not in page and "WRONG" not in page


def test_existing_rows_are_not_measured_again(folder: Path, tmp_path: Path) -> None:
    results = Results(folder, CPU)
    assert results.has("roofs/copy") and not results.has("roofs/other")


def test_rows_of_another_machine_are_not_added_to(folder: Path) -> None:
    with pytest.raises(ValueError, match="sizes differ"):
        Results(folder, Setting(torch.device("cpu"), toy=False))


def test_a_row_that_raises_reports_the_error_and_the_next_one_runs(tmp_path: Path) -> None:
    results = Results(tmp_path, CPU)
    assert results.run(Task("a/b", lambda: {}["missing"]))["failed"] == "KeyError: 'missing'"
    assert results.run(Task("a/c", lambda: {"value": 1})) == {"key": "a/c", "value": 1}
    assert not results.broken
    assert set(Results(tmp_path, CPU).rows) == {"a/b", "a/c"}


def test_a_row_that_ended_its_process_twice_is_left_out_and_listed(tmp_path: Path) -> None:
    def end_of_process() -> dict[str, Any]:
        raise SystemExit  # as near as a test comes to a process that is killed

    for _ in range(2):
        results = Results(tmp_path, CPU)
        assert not results.has("a/b")
        with pytest.raises(SystemExit):
            results.run(Task("a/b", end_of_process))
    results = Results(tmp_path, CPU)
    assert results.has("a/b")
    results.write(lambda results: "")
    assert json.loads((tmp_path / "results.json").read_text())["ended_their_process"] == ["a/b"]


def test_without_a_gpu_there_is_a_message_with_advice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["--out", str(tmp_path)]) == 2
    assert "--device cpu --toy" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "millions"), [("gpt2-124m", 124), ("llama-1b", 1235), ("bert-base", 108)])
def test_the_models_have_their_published_sizes(name: str, millions: int) -> None:
    model = FULL[name].model(torch.device("meta"), torch.bfloat16)
    assert sum(p.numel() for p in model.parameters()) // 10**6 == millions


def test_the_models_flops_are_those_of_its_products() -> None:
    """6 for each weight of a layer and token, and 12 for each query, key, head and entry of a head."""
    trained = TOY["gpt2-124m"]
    width, layers, vocabulary, tokens = 64, 1, 211, 2 * 32
    weights = layers * 12 * width * width + vocabulary * width
    assert model_flops(trained) == 6 * weights * tokens + layers * 12 * tokens * 32 * width
