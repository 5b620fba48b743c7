"""attn_implementation="autofuse" computes the results of "eager", with a kernel where possible."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import autofuse

transformers = pytest.importorskip("transformers")
registry = pytest.importorskip("autofuse.integrations.transformers_attention")

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "attn_implementation": "eager",
}  # fmt: skip
T5 = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}


class Kernels(TorchDispatchMode):
    """Records which attention kernels run, and whether each gets a mask."""

    __module__ = "autofuse.observer"  # a user's own mode would make autofuse run the original

    def __init__(self) -> None:
        super().__init__()
        self.masked: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scaled_dot_product" in str(func) and "backward" not in str(func):
            self.masked.append((kwargs or {}).get("attn_mask") is not None)
        return func(*args, **(kwargs or {}))


def make_model(name: str, config: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**{**SIZES, **options}))
    return model


def with_autofuse_attention(model: nn.Module) -> nn.Module:
    registry.register()
    other: Any = copy.deepcopy(model)
    other.set_attn_implementation("autofuse")
    return other  # type: ignore[no-any-return]


def tokens(**more: Tensor) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(1)), **more}


def padded_inputs(left: bool = False) -> dict[str, Tensor]:
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    return tokens(attention_mask=mask if left else mask.flip(-1))


def outputs_and_gradients(model: nn.Module, given: dict[str, Tensor]) -> list[Tensor]:
    """The output, and the gradients of a loss that ignores padding."""
    model.zero_grad()
    output: Tensor = model(**given)[0]
    weights = torch.linspace(0, 1, output.numel()).view_as(output)
    if "attention_mask" in given:
        weights = weights * given["attention_mask"].unsqueeze(-1)
    (output * weights).sum().backward()
    return [output, *(p.grad for p in model.parameters() if p.grad is not None)]


LLAMA = ("LlamaForCausalLM", "LlamaConfig", {})
MISTRAL = ("MistralForCausalLM", "MistralConfig", {"sliding_window": 4})
GEMMA = ("Gemma2ForCausalLM", "Gemma2Config", {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4})


@pytest.mark.parametrize(
    ("model", "given", "kernels"),
    [
        (LLAMA, tokens(), [False, False]),
        (LLAMA, padded_inputs(), [True, True]),
        (
            LLAMA,
            padded_inputs(left=True),
            [],
        ),  # queries without a key: on a CPU the gradient that eager lets through is kept
        (MISTRAL, tokens(), [True, True]),
        (GEMMA, padded_inputs(), []),
    ],
)
def test_outputs_and_gradients_match_eager(
    model: tuple[str, str, dict[str, Any]], given: dict[str, Tensor], kernels: list[bool]
) -> None:
    eager = make_model(model[0], model[1], **model[2])
    other = with_autofuse_attention(eager)
    with Kernels() as ran:
        other(**given)
    assert ran.masked == kernels
    for training in (True, False):
        pairs = zip(
            outputs_and_gradients(eager.train(training), given),
            outputs_and_gradients(other.train(training), given),
            strict=True,
        )
        for one, two in pairs:
            torch.testing.assert_close(two, one, atol=2e-5, rtol=1e-4)


def test_a_position_bias_is_added() -> None:
    eager = make_model("T5Model", "T5Config", **T5)
    given = tokens(decoder_input_ids=torch.randint(3, 50, (2, 5)))
    for one, two in zip(
        outputs_and_gradients(eager, given), outputs_and_gradients(with_autofuse_attention(eager), given), strict=True
    ):
        torch.testing.assert_close(two, one, atol=2e-5, rtol=1e-4)


def test_requested_weights_match_eager_and_the_next_call_uses_the_kernel() -> None:
    eager = make_model(*LLAMA[:2]).eval()
    other = with_autofuse_attention(eager)
    for asked in (False, True, False):
        with Kernels() as ran:
            found = other(**padded_inputs(), output_attentions=asked)
        expected = eager(**padded_inputs(), output_attentions=asked)
        assert len(ran.masked) == (0 if asked else 2)
        torch.testing.assert_close(found.attentions, expected.attentions, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found.logits, expected.logits, atol=2e-5, rtol=1e-4)


def test_a_saved_model_does_not_name_the_implementation(tmp_path: Any) -> None:
    eager: Any = make_model(*LLAMA[:2])
    other: Any = with_autofuse_attention(eager)
    assert other.config.to_dict() == eager.config.to_dict()
    other.save_pretrained(tmp_path)
    assert "autofuse" not in (tmp_path / "config.json").read_text()
    other.set_attn_implementation("eager")
    assert torch.equal(other(**tokens()).logits, eager(**tokens()).logits)


def test_tokens_are_generated_with_a_cache_and_layers_are_checkpointed() -> None:
    eager: Any = make_model(*LLAMA[:2]).eval()
    other: Any = with_autofuse_attention(eager)
    options = {"max_new_tokens": 5, "do_sample": False}
    assert torch.equal(
        other.generate(**padded_inputs(left=True), **options), eager.generate(**padded_inputs(left=True), **options)
    )
    other.train().gradient_checkpointing_enable()
    for one, two in zip(
        outputs_and_gradients(eager.train(), tokens()), outputs_and_gradients(other, tokens()), strict=True
    ):
        torch.testing.assert_close(two, one, atol=2e-5, rtol=1e-4)


def test_optimize_fuses_the_rest_and_keeps_the_attention() -> None:
    eager = make_model(*LLAMA[:2])
    other = autofuse.optimize(with_autofuse_attention(eager), tokens())
    rules = {s.rule for s in autofuse.report(other).with_status("fused")}
    assert "AF202" in rules and "AF303" in rules and not rules & {"AF101", "AF102"}
    with Kernels() as ran:
        other(**tokens())
    assert ran.masked == [False, False]
    for one, two in zip(outputs_and_gradients(eager, tokens()), outputs_and_gradients(other, tokens()), strict=True):
        torch.testing.assert_close(two, one, atol=2e-5, rtol=1e-4)
