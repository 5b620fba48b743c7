"""Checkpoints of a Trainer with the callback load without it, and the other way round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from autofuse.integrations.transformers import AutofuseCallback  # noqa: E402

STEPS = 4


class Tokens(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(50, (12,), generator=torch.Generator().manual_seed(place))
        return {"input_ids": tokens, "labels": tokens}


def train(folder: Path, fused: bool, resume: Path | None = None, **options: Any) -> tuple[dict[int, float], set[str]]:
    """The loss of each step, and the attention kernels that ran."""
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 50}
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 1}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **rates, attn_implementation="eager"))
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, save_steps=2, logging_steps=1, per_device_train_batch_size=4,
        report_to=[], disable_tqdm=True, use_cpu=True, save_total_limit=3, **options,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Tokens(), callbacks=[AutofuseCallback()] if fused else []
    )
    with torch.profiler.profile() as profiler:
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    losses = {e["step"]: e["loss"] for e in trainer.state.log_history if "loss" in e}
    return losses, {e.key for e in profiler.key_averages() if "flash_attention_for_cpu_backward" in e.key}


OPTIONS = [
    pytest.param({}, id="plain"),
    pytest.param({"gradient_checkpointing": True}, id="gradient checkpointing", marks=pytest.mark.night),
    pytest.param({"bf16": True}, id="bf16", marks=pytest.mark.night),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_run_resumes_from_a_checkpoint_of_either_model(options: dict[str, Any], tmp_path: Path) -> None:
    bound = 2.0**-7 if options.get("bf16") else 64 * 2.0**-22  # losses of four; Trainer rounds none of them
    plain, none = train(tmp_path / "plain", False, **options)
    fused, some = train(tmp_path / "fused", True, **options)
    assert not none and some
    assert fused == pytest.approx(plain, abs=bound, rel=0) and len(plain) == STEPS
    onward, _ = train(tmp_path / "onward", True, tmp_path / "plain" / "checkpoint-2", **options)
    back, _ = train(tmp_path / "back", False, tmp_path / "fused" / "checkpoint-2", **options)
    for resumed in (onward, back):
        for step in (3, 4):
            assert resumed[step] == pytest.approx(plain[step], abs=bound, rel=0)
