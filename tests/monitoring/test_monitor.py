"""The figures of a monitor for small training loops on a CPU, compared with known numbers."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.monitoring import IntervalFigures, Monitor


class Recorder:
    """A writer that keeps the figures."""

    def __init__(self) -> None:
        self.figures: list[IntervalFigures] = []
        self.closed = 0

    def write(self, figures: IntervalFigures) -> None:
        self.figures.append(figures)

    def close(self) -> None:
        self.closed += 1


def train_step(model: nn.Module, x: Tensor) -> None:
    model(x).square().mean().backward()
    model.zero_grad()


def test_it_is_a_name_of_the_package() -> None:
    assert autofuse.Monitor is Monitor


def test_intervals_have_their_steps_and_samples_and_the_rest_is_written_at_the_end() -> None:
    recorder, batches = Recorder(), [torch.zeros(4, 7, dtype=torch.long) for _ in range(5)]
    monitor = Monitor(writers=recorder, every=2)
    for batch in monitor.batches(batches):
        monitor.step(batch)
    monitor.close()
    monitor.close()
    assert [(f.step, f.steps) for f in recorder.figures] == [(2, 2), (4, 2), (5, 1)]
    assert recorder.closed == 1
    for found in recorder.figures:
        assert found.samples_per_second == pytest.approx(4 * found.steps / found.seconds)
        assert found.tokens_per_second == pytest.approx(28 * found.steps / found.seconds)
        assert found.step_seconds == pytest.approx(found.seconds / found.steps)
        assert 0 < found.step_seconds_low <= found.step_seconds_high <= found.seconds


def test_a_sleeping_loader_and_a_sleeping_step_are_distinguished() -> None:
    def slow() -> Any:
        for _ in range(4):
            time.sleep(0.02)
            yield torch.zeros(1, 1)

    waiting, idle = Recorder(), Recorder()
    for recorder, loader, pause in ((waiting, slow(), 0.0), (idle, [torch.zeros(1, 1)] * 4, 0.02)):
        monitor = Monitor(writers=recorder, every=4)
        for batch in monitor.batches(loader):
            time.sleep(pause)
            monitor.step(batch)
    (first,), (second,) = waiting.figures, idle.figures
    # A sleep takes at least its time, so 0.08 s of the interval are the loader's, or none.
    assert first.loader_share is not None and first.loader_share * first.seconds >= 0.08
    assert second.loader_share is not None and second.seconds * (1 - second.loader_share) >= 0.08


def test_counted_flops_are_those_of_the_products_and_give_the_utilisation() -> None:
    """Forward 2 m k n, and backward as much for the weight. The input requires no gradient."""
    model, x, recorder = nn.Linear(32, 16, bias=False), torch.randn(8, 32), Recorder()
    monitor = Monitor(model, recorder, every=3, flops="count", peak_flops=1e12)
    for _ in range(5):
        train_step(model, x)
        monitor.step(x)
    (found,) = recorder.figures
    flops = 2 * (2 * 8 * 32 * 16)
    assert (found.step, found.steps) == (5, 3), "the counted step belongs to no interval"
    assert found.flops_per_second == pytest.approx(flops * 3 / found.seconds)
    assert found.mfu == pytest.approx(flops * 3 / found.seconds / 1e12)
    assert torch.nn.Linear.__call__ is nn.Module.__call__


def test_unknown_numbers_are_none() -> None:
    recorder = Recorder()
    monitor = Monitor(writers=recorder, every=1)
    monitor.step()
    (found,) = recorder.figures
    assert (found.samples_per_second, found.tokens_per_second, found.flops_per_second) == (None, None, None)
    assert (found.mfu, found.loader_share, found.device_share) == (None, None, None)
    assert found.memory_bytes and found.memory_bytes > 2**20 and found.device == "cpu"
    assert "mfu" not in found.numbers()


def test_one_step_that_does_not_say_its_tokens_leaves_the_sum_unknown() -> None:
    recorder = Recorder()
    monitor = Monitor(writers=recorder, every=2)
    monitor.step(samples=3, tokens=5)
    monitor.step(samples=3)
    assert recorder.figures[0].tokens_per_second is None
    assert recorder.figures[0].samples_per_second is not None


def test_a_writer_that_raises_is_dropped_and_the_training_continues(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        def write(self, figures: IntervalFigures) -> None:
            super().write(figures)
            raise OSError("the disk is full")

    broken, fine = Broken(), Recorder()
    monitor = Monitor(writers=[broken, fine], every=1)
    with caplog.at_level(logging.WARNING, "autofuse"):
        monitor.step()
        monitor.step()
    assert len(broken.figures) == 1 and len(fine.figures) == 2
    assert "the disk is full" in caplog.text


def test_a_path_gets_json_lines(tmp_path: Path) -> None:
    monitor = Monitor(writers=tmp_path / "runs" / "a.jsonl", every=1)
    monitor.step(samples=2)
    monitor.step(samples=2)
    monitor.close()
    lines = [json.loads(line) for line in (tmp_path / "runs" / "a.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2] and lines[0]["samples_per_second"] > 0


def test_closing_while_a_step_is_counted_leaves_no_mode_on() -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    monitor = Monitor(model, flops="count")
    train_step(model, x)
    monitor.step(x)
    monitor.close()
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize("options", [{"every": 0}, {"flops": "guess"}, {"flops": "count"}])
def test_arguments_that_say_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Monitor(**options)


def test_the_example_in_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec(page.split("```python\n")[1].split("```")[0], {})
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [7, 12, 16]
    assert all(line["flops_per_second"] > 0 and line["tokens_per_second"] > 0 for line in lines)
