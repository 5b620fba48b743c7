"""Greedy decoding with a cache gives the same tokens, fused at every length, without a capture for each."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import autofuse
from tests.fx.wrapped import fused_run, tokens

NEW, LAYERS = 8, 2


@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}], ids=["growing", "static"])
def test_a_llama_of_transformers_decodes_fused(cache: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(
        **sizes, num_hidden_layers=LAYERS, vocab_size=40, attn_implementation="eager", pad_token_id=0
    )
    plain = transformers.LlamaForCausalLM(config).eval()
    plain.generation_config.eos_token_id = None
    model = copy.deepcopy(plain)
    autofuse.optimize(model, {"input_ids": tokens()}, verify=False)

    def decoded(m: Any) -> Tensor:
        given = {"attention_mask": torch.ones_like(tokens()), "max_new_tokens": NEW, "do_sample": False}
        return m.generate(tokens(), **given, **cache)  # type: ignore[no-any-return]

    assert torch.equal(decoded(model), decoded(plain))
    assert fused_run(lambda: decoded(model))["scaled_dot_product_attention"] == NEW * LAYERS
    anew = [f for f in autofuse.report(model).fallbacks if "self_attn" in f.module]
    assert sum(f.calls for f in anew) <= LAYERS
