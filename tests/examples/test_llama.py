"""examples/llama.py before and after."""

import pytest
import torch

TOKENS = torch.randint(24, (2, 48), generator=torch.Generator().manual_seed(0))


def test_the_optimized_example_learns_the_same(script):
    outcome = script("llama", "Llama").train_optimized(TOKENS)
    assert outcome.agreement.agrees, outcome.agreement.sentence
    assert outcome.fused & {"AF202", "AF203"} and outcome.fused >= {"AF101", "AF303"}


@pytest.mark.parametrize("options", [(), ("--unsafe",)], ids=["safe", "unsafe"])
def test_the_rewritten_example_learns_the_same(script, tmp_path, options):
    outcome = script("llama", "Llama").train_rewritten(tmp_path, *options)
    assert outcome.agreement.agrees, outcome.agreement.sentence
    for fused in ("F.scaled_dot_product_attention(", "fused=True"):
        assert fused in outcome.text
    # A norm is safe only if the text shows that its weight has the shape of the last dimension.
    assert "F.rms_norm(" in outcome.text or not options


def test_the_second_half_of_a_sentence_repeats_the_first(script):
    module = script("llama", "Llama").module
    first, second = module.batch(module.Config(), torch.Generator().manual_seed(0)).chunk(2, dim=1)
    assert torch.equal(first, second)
