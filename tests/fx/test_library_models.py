"""Models of libraries with hand-written attention are fused, with equal outputs and gradients."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import autofuse
from tests.fx.conftest import fused_rules

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 50, "attn_implementation": "eager"}
QUIET = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def bert() -> nn.Module:
    config = transformers.BertConfig(
        **SMALL, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertModel(config)  # type: ignore[no-any-return]


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        **SMALL,
        **QUIET,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=32,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        **SMALL, **QUIET, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)  # type: ignore[no-any-return]


def x_transformer() -> nn.Module:
    library = pytest.importorskip("x_transformers")
    layers = library.Decoder(dim=32, depth=2, heads=4)
    return library.TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers)  # type: ignore[no-any-return]


def first(output: object) -> Tensor:
    found = output if isinstance(output, Tensor) else output[0]  # type: ignore[index]
    assert isinstance(found, Tensor)
    return found


def computed(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    model.zero_grad()
    output = first(model(tokens))
    (output * torch.linspace(0, 1, output.numel()).view_as(output)).sum().backward()
    return [output, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("make", [bert, gpt2, llama, x_transformer])
def test_attention_is_fused_and_everything_stays_the_same(make: Callable[[], nn.Module]) -> None:
    model = make()
    fused = autofuse.optimize(copy.deepcopy(model), torch.randint(3, 50, (2, 7)), verify=False, tune=False)
    layers = [s.module for s in autofuse.report(fused).with_status("fused") if s.rule == "AF101" and "." in s.module]
    assert len(layers) == len(set(layers)) == 2, "the mask of the model is a place of the model itself"
    assert list(model.state_dict()) == list(fused.state_dict())
    for training in (True, False):
        for shape in ((2, 7), (3, 11), (1, 2)):
            tokens = torch.randint(3, 50, shape)
            pairs = zip(computed(model.train(training), tokens), computed(fused.train(training), tokens), strict=True)
            for one, other in pairs:
                torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused)), autofuse.restore(fused)):
        torch.testing.assert_close(first(other(tokens)), first(model.eval()(tokens)), atol=2e-5, rtol=1e-4)


def test_requested_attention_weights_are_returned() -> None:
    model = bert().eval()
    tokens = torch.randint(3, 50, (2, 7))
    fused = autofuse.optimize(copy.deepcopy(model), tokens, verify=False, tune=False)
    assert "AF101" in fused_rules(fused)
    expected, found = (m(tokens, output_attentions=True).attentions for m in (model, fused))
    assert len(found) == 2
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


class Attentions(TorchDispatchMode):
    """Counts the attention kernels and the softmaxes that run."""

    __module__ = "autofuse.observer"  # a mode of the user would make the original run

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.softmaxes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kernels += "scaled_dot_product" in str(func)
        self.softmaxes += "_softmax.default" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("by", ["a flag of the config", "an argument"])
@pytest.mark.parametrize("asked", [(False, True, False), (True, False, True)])
def test_attention_falls_back_while_weights_are_requested(asked: tuple[bool, ...], by: str, training: bool) -> None:
    model = llama().train(training)
    tokens = torch.randint(3, 50, (2, 7))
    fused = autofuse.optimize(copy.deepcopy(model), tokens, verify=False, tune=False)
    for on in asked:
        options = {"output_attentions": on} if by == "an argument" and on else {}
        for m in (model, fused):
            m.config.output_attentions = on and by != "an argument"
        with Attentions() as ran:
            found = fused(tokens, **options)
        expected = model(tokens, **options)
        assert (ran.kernels, ran.softmaxes) == ((0, 2) if on else (2, 0))
        torch.testing.assert_close(found.logits, expected.logits, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(found.attentions, expected.attentions, atol=1e-6, rtol=1e-5)


def t5() -> nn.Module:
    sizes = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(**sizes, dropout_rate=0.0, attn_implementation="eager")
    return transformers.T5Model(config)  # type: ignore[no-any-return]


def olmo2() -> nn.Module:
    config = transformers.Olmo2Config(
        **SMALL, **QUIET, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48,
    )  # fmt: skip
    return transformers.Olmo2ForCausalLM(config)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("make", "count"), [pytest.param(t5, 6, marks=pytest.mark.night), (olmo2, 2)])
def test_an_empty_cache_and_a_cast_without_effect_do_not_prevent_fusion(
    make: Callable[[], nn.Module], count: int
) -> None:
    torch.manual_seed(0)
    model = make().eval()
    given = {"input_ids": torch.randint(3, 50, (2, 7))}
    if make is t5:
        given["decoder_input_ids"] = torch.randint(3, 50, (2, 5))
    fused = autofuse.optimize(copy.deepcopy(model), given, verify=False, tune=False)
    with torch.no_grad(), Attentions() as ran:  # on a CPU torch uses no kernel for a bias that requires a gradient
        found = fused(**given)
    assert (ran.kernels, ran.softmaxes) == (count, 0)
    torch.testing.assert_close(first(found), first(model(**given)), atol=2e-5, rtol=1e-4)


def test_gradient_checkpointing_still_works() -> None:
    model = llama().train()
    tokens = torch.randint(3, 50, (2, 7))
    fused = autofuse.optimize(copy.deepcopy(model), tokens, verify=False, tune=False)
    for m in (model, fused):
        m.gradient_checkpointing_enable()
    computed(fused, tokens)  # without a cache the layers get another kind of call, which is captured first
    with Attentions() as ran:
        found = computed(fused, tokens)
    assert ran.kernels and not ran.softmaxes
    for one, other in zip(computed(model, tokens), found, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_generation_works_token_by_token() -> None:
    model = gpt2().eval()
    tokens = torch.randint(3, 50, (1, 5))
    fused = autofuse.optimize(copy.deepcopy(model), tokens, verify=False, tune=False)
    options = {"max_new_tokens": 6, "do_sample": False}
    with Attentions() as ran:
        found = fused.generate(tokens, **options)
    assert torch.equal(model.generate(tokens, **options), found)
    assert ran.kernels == 12  # two layers, six passes
