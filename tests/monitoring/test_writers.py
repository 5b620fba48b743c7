"""Writers against their real packages, if these are installed, and the two that need none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autofuse.monitoring import writers
from autofuse.monitoring.figures import IntervalFigures
from autofuse.monitoring.writers import JsonLines, Mlflow, Prometheus, TensorBoard, Wandb, active_writers

FIGURES = IntervalFigures(
    10, 5, 2.0, 0.4, 0.3, 0.5, tokens_per_second=1234.5, mfu=0.25, memory_bytes=2**30, device='A "card"'
)


def test_prometheus_text_has_a_gauge_for_each_known_figure() -> None:
    lines = writers.prometheus_text(FIGURES).splitlines()
    assert 'autofuse_tokens_per_second{device="A \\"card\\""} 1234.5' in lines
    assert "# TYPE autofuse_mfu gauge" in lines
    assert not any("loader_share" in line for line in lines)
    assert len(lines) == 2 * (1 + len(FIGURES.numbers()))


def test_the_prometheus_file_holds_the_last_interval_and_no_other_file_stays(tmp_path: Path) -> None:
    writer = Prometheus(tmp_path / "a" / "autofuse.prom")
    writer.write(FIGURES)
    writer.write(replace(FIGURES, step=20))
    writer.close()
    assert 'autofuse_step{device="A \\"card\\""} 20.0' in (tmp_path / "a" / "autofuse.prom").read_text()
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["autofuse.prom"]


def test_json_lines_are_appended_to_an_earlier_run(tmp_path: Path) -> None:
    for _ in range(2):
        writer = JsonLines(tmp_path / "a.jsonl")
        writer.write(FIGURES)
        writer.close()
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 2


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in (("tensorboard", lambda: TensorBoard("x")), ("wandb", Wandb), ("mlflow", Mlflow)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=f"pip install {name}"):
            kind()


def test_looking_for_active_runs_imports_nothing() -> None:
    code = (
        "import sys; from autofuse.monitoring import active_writers; assert active_writers() == []; "
        "assert not {'wandb', 'mlflow', 'tensorboard'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


def test_tensorboard_gets_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = TensorBoard(tmp_path)
    writer.write(FIGURES)
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {f"autofuse/{name}" for name in FIGURES.numbers()}
    (event,) = events.Scalars("autofuse/tokens_per_second")
    assert (event.step, event.value) == (10, 1234.5)


def test_wandb_logs_to_the_active_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(RuntimeError, match=r"wandb\.init"):
        Wandb()
    with wandb.init(dir=tmp_path, project="test") as run:
        (writer,) = active_writers()
        assert isinstance(writer, Wandb)
        writer.write(FIGURES)
        assert run.summary["autofuse/tokens_per_second"] == 1234.5
        assert run.summary["autofuse/step"] == 10


def test_mlflow_logs_to_the_active_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with pytest.raises(RuntimeError, match="start_run"):
        Mlflow()
    with mlflow.start_run() as run:
        (writer,) = active_writers()
        assert isinstance(writer, Mlflow)
        writer.write(FIGURES)
    (metric,) = mlflow.MlflowClient().get_metric_history(run.info.run_id, "autofuse/tokens_per_second")
    assert (metric.step, metric.value) == (10, 1234.5)
