"""The callback in a real Trainer of Lightning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

lightning = pytest.importorskip("lightning")

from autofuse.monitoring.lightning import MonitorCallback  # noqa: E402


class Task(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.body, self.fails_at = nn.Embedding(9, 1), fails_at

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        if index == self.fails_at:
            raise ArithmeticError("wrong")
        loss: Tensor = self.body(batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(folder: Path, task: Task) -> list[dict[str, float]]:
    callback = MonitorCallback(folder / "run.jsonl", every=2)
    trainer = lightning.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
        enable_model_summary=False, default_root_dir=str(folder), callbacks=[callback],
    )  # fmt: skip
    batches = torch.utils.data.DataLoader(torch.ones(20, 7, dtype=torch.long), batch_size=4)
    try:
        trainer.fit(task, batches)
    except ArithmeticError:
        assert task.fails_at >= 0
    return [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]


def test_batches_are_steps_and_their_shapes_tell_samples_and_tokens(tmp_path: Path) -> None:
    lines = train(tmp_path, Task())
    assert [(line["step"], line["steps"]) for line in lines] == [(2, 2), (4, 2), (5, 1)]
    for line in lines:
        assert line["samples_per_second"] * line["seconds"] == pytest.approx(4 * line["steps"])
        assert line["tokens_per_second"] * line["seconds"] == pytest.approx(28 * line["steps"])


def test_measurements_of_a_failed_training_are_written(tmp_path: Path) -> None:
    assert [line["step"] for line in train(tmp_path, Task(fails_at=3))] == [2, 3]
