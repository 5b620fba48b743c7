"""Trainers that compute the loss outside of the model pass it to `optimize`, and their losses stay equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse.fx.lazy.linear import lazy_at_any_size
from autofuse.fx.lazy.tensor import LazyLogits

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
lightning = pytest.importorskip("lightning")

from autofuse.integrations import lightning as for_lightning  # noqa: E402
from autofuse.integrations import transformers as for_transformers  # noqa: E402

CLASSES, STEPS = 300, 3
# Losses of about six nats in float32 are rounded to 2^-21; a sum in blocks of rows adds the rounding of each block.
BOUND = 64 * 2.0**-21


@pytest.fixture(autouse=True)
def small_logits_are_lazy() -> Iterator[None]:
    with lazy_at_any_size():
        yield


def tokens() -> Tensor:
    return torch.randint(CLASSES, (16, 8), generator=torch.Generator().manual_seed(0))


class RecordedLoss:
    """Cross entropy of shifted logits, as a `compute_loss_func`; records whether the logits were lazy."""

    def __init__(self) -> None:
        self.lazy: list[bool] = []

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs["logits"]
        self.lazy.append(isinstance(logits, LazyLogits))
        return F.cross_entropy(logits[:, :-1].reshape(-1, CLASSES), labels[:, 1:].reshape(-1))


class Language(nn.Module):
    """Returns its logits, and its own loss if the Trainer passes the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.config = transformers.PretrainedConfig()
        self.embedding, self.body, self.head = nn.Embedding(CLASSES, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(torch.tanh(self.body(self.embedding(input_ids))))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def train_with_trainer(folder: Path, callbacks: list[Any], loss: Any = None, **options: Any) -> list[float]:
    torch.manual_seed(0)
    trainer = transformers.Trainer(
        Language(),
        transformers.TrainingArguments(
            str(folder), max_steps=STEPS, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
            use_cpu=True, per_device_train_batch_size=4, **options,
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens()],
        callbacks=callbacks,
        compute_loss_func=loss,
    )  # fmt: skip
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.night
def test_the_logits_of_a_library_model_are_lazy_at_its_first_call() -> None:
    config = transformers.LlamaConfig(
        vocab_size=CLASSES, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).train()
    autofuse.optimize(model, loss_fn=F.cross_entropy, verify=False)
    assert isinstance(model(input_ids=tokens()).logits, LazyLogits)


def test_the_loss_function_of_a_trainer_gets_lazy_logits_and_gives_equal_losses(tmp_path: Path) -> None:
    plain, fused = RecordedLoss(), RecordedLoss()
    expected = train_with_trainer(tmp_path / "plain", [], plain)
    callback = for_transformers.AutofuseCallback(verify=False)
    found = train_with_trainer(tmp_path / "fused", [callback], fused)
    assert callback.options["loss_fn"] is fused
    assert not any(plain.lazy) and all(fused.lazy) and len(fused.lazy) == STEPS
    assert found == pytest.approx(expected, abs=BOUND, rel=0)
    assert any(site.rule == "AF502" and site.status == "fused" for site in callback.report.sites)


def test_label_smoothing_is_a_loss_outside_of_the_model(tmp_path: Path) -> None:
    callback = for_transformers.AutofuseCallback(verify=False)
    expected = train_with_trainer(tmp_path / "plain", [], label_smoothing_factor=0.1)
    found = train_with_trainer(tmp_path / "fused", [callback], label_smoothing_factor=0.1)
    assert type(callback.options["loss_fn"]).__name__ == "LabelSmoother"
    assert found == pytest.approx(expected, abs=BOUND, rel=0)


def test_a_model_with_its_own_loss_and_a_caller_that_says_none_pass_no_loss(tmp_path: Path) -> None:
    callback = for_transformers.AutofuseCallback(verify=False)
    train_with_trainer(tmp_path / "own", [callback])
    assert "loss_fn" not in callback.options
    callback = for_transformers.AutofuseCallback(verify=False, loss_fn=None)
    loss = RecordedLoss()
    train_with_trainer(tmp_path / "none", [callback], loss)
    assert callback.options["loss_fn"] is None and not any(loss.lazy)


class Task(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.body = nn.Embedding(CLASSES, 8), nn.Linear(8, 8)
        self.head, self.loss = nn.Linear(8, CLASSES), nn.CrossEntropyLoss()
        self.losses: list[float] = []
        self.lazy: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.body(self.embedding(x))))
        return logits

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        logits = self(batch)
        self.lazy.append(isinstance(logits, LazyLogits))
        loss: Tensor = self.loss(logits.flatten(0, 1), batch.flatten())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train_with_lightning(folder: Path, callbacks: list[Any]) -> Task:
    task = Task()
    trainer = lightning.Trainer(
        max_steps=STEPS, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
        enable_model_summary=False, default_root_dir=str(folder), callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(task, torch.utils.data.DataLoader(tokens(), batch_size=4))
    return task


def test_the_loss_of_a_lightning_module_is_passed_and_losses_are_equal(tmp_path: Path) -> None:
    plain = train_with_lightning(tmp_path, [])
    fused = train_with_lightning(tmp_path, [for_lightning.AutofuseCallback(verify=False)])
    assert not any(plain.lazy) and any(fused.lazy), fused.lazy
    assert fused.losses == pytest.approx(plain.losses, abs=BOUND, rel=0)


def test_a_lightning_module_with_two_losses_passes_no_loss() -> None:
    task = Task()
    assert for_lightning._loss_of(task) is task.loss
    task.other = nn.CrossEntropyLoss()
    assert for_lightning._loss_of(task) is None


def test_a_loop_like_torchtitans_passes_its_own_loss() -> None:
    def train(fuse: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(CLASSES, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES))
        if fuse:
            autofuse.optimize(model, loss_fn=F.cross_entropy, verify=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(STEPS):
            loss = F.cross_entropy(model(tokens()).flatten(0, 1).float(), tokens().flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    assert train(True) == pytest.approx(train(False), abs=BOUND, rel=0)
