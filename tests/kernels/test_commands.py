"""`autofuse kernels`, `tune` and `cache` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autofuse.cli import main
from autofuse.kernels import decisions

QUICK = ["--op", "rms_norm", "--seconds", "0.01"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    decisions.forget()
    return tmp_path / "cache"


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    return capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(output_of(capsys, *arguments, "--format", "json"))
    return found


def test_kernels_lists_every_package_and_operation(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, "kernels")
    assert found["version"] == 1
    packages = {p["name"]: p for p in found["packages"]}  # type: ignore[attr-defined]
    assert packages["torch"]["available"] and packages["torch"]["version"]
    assert all(p["available"] or p["reason"] and p["install"] for p in packages.values())
    operations = {o["operation"]: o["providers"] for o in found["operations"]}  # type: ignore[attr-defined]
    assert {"rms_norm", "layer_norm", "dropout_add_norm"} <= set(operations)
    for providers in operations.values():
        assert all(p["available"] or p["reason"] for p in providers)
        assert [p["name"] for p in providers if p["name"] == "torch" and p["available"]] == ["torch"]


def test_kernels_shows_the_named_operations(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output_of(capsys, "kernels", "rms_norm")
    assert "rms_norm" in shown and "compiled" in shown and "Gradient:" in shown
    assert "dropout_add_norm" not in shown


def test_an_unknown_operation_is_an_error_that_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "rms"]) == 2
    assert "There is no operation 'rms'. Use one of" in capsys.readouterr().err


def test_tune_measures_and_cache_shows_lists_and_clears(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    assert "No kernel has been measured yet" in output_of(capsys, "cache")
    (result,) = data(capsys, "tune", *QUICK, "--shape", "2048x512")["results"]  # type: ignore[misc]
    assert result["operation"] == "rms_norm" and result["training"]
    assert result["arguments"].startswith("float32 (2048, 512), float32 (512,)")
    assert {t["name"] for t in result["trials"]} >= {"torch", "triton", "compiled"}
    assert output_of(capsys, "cache", "path") == f"{place}\n"
    if not result["measured"]:
        pytest.skip(result["why"])
    assert "cpu" in output_of(capsys, "cache")
    listed = output_of(capsys, "cache", "list")
    assert "rms_norm float32" in listed and result["winner"] in listed
    (file,) = data(capsys, "cache")["files"]  # type: ignore[misc]
    assert list(file["decisions"].values()) == [result]
    assert data(capsys, "tune", *QUICK, "--shape", "2048x512", "--keep")["results"] == [result]
    assert output_of(capsys, "cache", "clear") == "1 file removed\n"
    assert "The cache holds no decision." in output_of(capsys, "cache", "list")


def test_tune_takes_a_model_in_inference_and_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--op", "layer_norm", "--inference", "--batch", "1", "--length", "128", "--width", "64", "--heads", "4"]
    shown = output_of(capsys, "tune", *QUICK, *options, "--dtype", "bfloat16", "--policy", "memory")
    assert "bfloat16 (128, 64)" in shown
    assert "rms_norm" in shown and "layer_norm" in shown and "goes to" in shown


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--op", "rms"], "There is no sample call of 'rms'"),
        (["--op", "rms_norm", "--shape", "2x3x4"], "rms_norm takes a shape of rows x width, but got 2x3x4"),
        (["--op", "rms_norm", "--op", "layer_norm", "--shape", "2x3"], "--shape needs exactly one --op"),
        (["--op", "rms_norm", "--width", "100", "--heads", "3"], "width 100 is not divisible by the number of heads"),
    ],
)
def test_options_that_do_not_fit_are_errors_that_say_why(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_an_invalid_shape_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune", "--op", "rms_norm", "--shape", "2048,768"])
    assert "'2048,768' is no shape" in capsys.readouterr().err


def test_a_damaged_file_of_the_cache_is_shown_as_damaged(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    place.mkdir()
    (place / "cpu-0.json").write_text("{")
    assert "cannot be read" in output_of(capsys, "cache")
    assert output_of(capsys, "cache", "clear") == "1 file removed\n"


def _without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys\nsys.modules['torch'] = None\nfrom autofuse.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_without_torch_packages_are_listed_and_tune_says_what_it_needs() -> None:
    kernels = _without_torch("kernels", "--format", "json")
    assert kernels.returncode == 0
    assert json.loads(kernels.stdout)["operations"] == []
    assert "need torch, which is not installed here" in kernels.stderr
    tune = _without_torch("tune")
    assert tune.returncode == 2
    assert "`tune` times kernels and needs torch" in tune.stderr
    assert _without_torch("cache", "path").returncode == 0
