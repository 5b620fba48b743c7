"""Fine-tuning as TRL and PEFT do it: preference losses on two models, and LoRA under the Trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse.fx.lazy.linear import lazy_at_any_size

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from autofuse.integrations import transformers as for_transformers  # noqa: E402

CLASSES, STEPS, BETA = 64, 3, 0.1
# The norms of transformers compute in float32, also in a float64 model. Their rounding, 2^-24, reaches the loss.
BOUND = 2.0**-23


@pytest.fixture(autouse=True)
def lazy_logits_at_any_size() -> Iterator[None]:
    with lazy_at_any_size():
        yield


def llama(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=CLASSES, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, attn_implementation="eager",
    )  # fmt: skip
    model: nn.Module = transformers.LlamaForCausalLM(config).to(dtype)
    return model


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens of chosen answers, then of rejected ones, and the mask of the completions."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        tokens = torch.randint(CLASSES, (4, 12), generator=generator)
        completion = torch.arange(12).expand(4, 12) >= torch.randint(3, 6, (4, 1), generator=generator)
        yield tokens, completion


def gathered(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)


def selected(logits: Tensor, labels: Tensor) -> Tensor:
    """As TRL's `selective_log_softmax`."""
    chosen = torch.gather(logits, dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])


def log_probs(model: nn.Module, tokens: Tensor, completion: Tensor, of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    logits, labels, mask = model(tokens).logits[:, :-1], tokens[:, 1:].clone(), completion[:, 1:]
    labels[~mask] = 0
    return of(logits, labels) * mask


def dpo(policy: nn.Module, reference: nn.Module, tokens: Tensor, mask: Tensor, of: Any) -> Tensor:
    with torch.no_grad():
        before = log_probs(reference, tokens, mask, of).sum(-1)
    ratios = log_probs(policy, tokens, mask, of).sum(-1) - before
    chosen, rejected = ratios.chunk(2)
    return -F.logsigmoid(BETA * (chosen - rejected)).mean()


def grpo(policy: nn.Module, reference: nn.Module, tokens: Tensor, mask: Tensor, of: Any) -> Tensor:
    with torch.no_grad():
        before = log_probs(reference, tokens, mask, of)
    now = log_probs(policy, tokens, mask, of)
    advantages = torch.tensor([1.0, -0.5, 0.25, -1.0], dtype=now.dtype).unsqueeze(1)
    ratio = torch.exp(now - now.detach())
    clipped = torch.clamp(ratio, 0.8, 1.2)
    divergence = torch.exp(before - now) - (before - now) - 1
    each = -torch.min(ratio * advantages, clipped * advantages) + 0.04 * divergence
    return (each * mask[:, 1:]).sum() / mask[:, 1:].sum()


def train(model: nn.Module, reference: nn.Module, loss: Any, of: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for tokens, mask in batches():
        value = loss(model, reference, tokens, mask, of)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("of", [gathered, pytest.param(selected, marks=pytest.mark.night)])
@pytest.mark.parametrize("loss", [dpo, pytest.param(grpo, marks=pytest.mark.night)])
def test_a_preference_loss_is_equal_and_checkpoints_are_interchangeable(loss: Any, of: Any) -> None:
    plain, plain_reference = llama(), llama().eval()
    fused, reference = llama(), llama().eval()
    tokens, _ = next(batches())
    for model in (fused, reference):
        autofuse.optimize(model, {"input_ids": tokens}, tune=False, loss_fn=loss)
    assert "AF502" in {s.rule for s in autofuse.report(fused).with_status("fused")}
    expected, found = train(plain, plain_reference, loss, of), train(fused, reference, loss, of)
    assert found == pytest.approx(expected, rel=BOUND)
    assert plain.state_dict().keys() == fused.state_dict().keys()
    saved = {name: value.clone() for name, value in fused.state_dict().items()}
    fused.load_state_dict(plain.state_dict())
    plain.load_state_dict(saved)
    assert train(fused, reference, loss, of) == pytest.approx(train(plain, plain_reference, loss, of), rel=BOUND)


@pytest.mark.night
@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], "all-linear"], ids=str)
@pytest.mark.parametrize("use_dora", [False, True])
def test_lora_under_the_trainer_is_equal_and_its_adapter_is_interchangeable(
    targets: Any, use_dora: bool, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")

    def trained(name: str, callbacks: list[Any], adapter: Path | None = None) -> tuple[list[float], nn.Module]:
        config = peft.LoraConfig(r=4, target_modules=targets, use_dora=use_dora, task_type="CAUSAL_LM")
        model = peft.get_peft_model(llama(torch.float32), config)
        if adapter is not None:
            peft.set_peft_model_state_dict(model, peft.load_peft_weights(str(adapter)))
        rows = [{"input_ids": row, "labels": row} for tokens, _ in batches() for row in tokens]
        trainer = transformers.Trainer(
            model,
            transformers.TrainingArguments(
                str(tmp_path / name), max_steps=STEPS, logging_steps=1, save_strategy="no", report_to=[],
                disable_tqdm=True, use_cpu=True, per_device_train_batch_size=4, learning_rate=1e-3,
            ),
            train_dataset=rows,
            callbacks=callbacks,
        )  # fmt: skip
        trainer.train()
        model.save_pretrained(tmp_path / name)
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], model

    expected, _ = trained("plain", [])
    found, fused = trained("fused", [for_transformers.AutofuseCallback(tune=False)])
    assert "AF101" in {s.rule for s in autofuse.report(fused).with_status("fused")}
    assert found == pytest.approx(expected, rel=1e-4)  # four decimals of a loss are logged, and sums are in float32
    continued, _ = trained("plain again", [], tmp_path / "fused")
    also, _ = trained("fused again", [for_transformers.AutofuseCallback(tune=False)], tmp_path / "plain")
    assert also == pytest.approx(continued, rel=1e-3)
