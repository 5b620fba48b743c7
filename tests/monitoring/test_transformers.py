"""The callback in a real Trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from autofuse.monitoring.transformers import MonitorCallback  # noqa: E402


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.body(input_ids.float()) - labels).square().mean()}


def test_steps_samples_and_tokens_are_those_of_the_trainer(tmp_path: Path) -> None:
    data = [{"input_ids": torch.ones(4, dtype=torch.long), "labels": torch.ones(1)} for _ in range(64)]
    options: dict[str, Any] = {"include_num_input_tokens_seen": "all", "gradient_accumulation_steps": 2}
    callback = MonitorCallback(tmp_path / "run.jsonl", every=2)
    arguments = transformers.TrainingArguments(
        str(tmp_path / "checkpoints"), max_steps=5, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
        per_device_train_batch_size=3, **options,
    )  # fmt: skip
    transformers.Trainer(Regression(), arguments, train_dataset=data, callbacks=[callback]).train()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [(line["step"], line["steps"]) for line in lines] == [(2, 2), (4, 2), (5, 1)]
    for line in lines:
        assert line["samples_per_second"] * line["seconds"] == pytest.approx(6 * line["steps"])
        assert line["tokens_per_second"] * line["seconds"] == pytest.approx(24 * line["steps"])
