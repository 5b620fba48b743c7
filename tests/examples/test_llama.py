"""examples/llama.py before and after."""

import torch


def test_it_learns_the_same_once_optimized(script):
    outcome = script("llama", "Llama").optimized(torch.zeros(2, 48, dtype=torch.long))
    assert outcome.agreement.agrees, outcome.agreement.sentence
    assert outcome.fused & {"AF202", "AF203"} and outcome.fused >= {"AF101", "AF303"}


def test_it_learns_the_same_once_rewritten(script, tmp_path):
    outcome = script("llama", "Llama").rewritten(tmp_path)
    assert outcome.agreement.agrees, outcome.agreement.sentence
    for fused in ("F.scaled_dot_product_attention(", "F.rms_norm(", "fused=True"):
        assert fused in outcome.text


def test_the_second_half_of_a_sentence_repeats_the_first(script):
    module = script("llama", "Llama").module
    first, second = module.batch(module.Config(), torch.Generator().manual_seed(0)).chunk(2, dim=1)
    assert torch.equal(first, second)
