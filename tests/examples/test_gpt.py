"""examples/gpt.py before and after. Its dropout is off: fused attention draws its random numbers in another order."""

import torch

EXPECTED = {"AF101", "AF201", "AF301"}


def test_it_learns_the_same_once_optimized(script):
    outcome = script("gpt", "GPT", dropout=0.0).optimized(torch.zeros(2, 64, dtype=torch.long))
    assert outcome.agreement.agrees, outcome.agreement.sentence
    assert outcome.fused >= EXPECTED


def test_it_learns_the_same_once_rewritten(script, tmp_path):
    outcome = script("gpt", "GPT", dropout=0.0).rewritten(tmp_path)
    assert outcome.agreement.agrees, outcome.agreement.sentence
    for fused in ("F.scaled_dot_product_attention(", "F.layer_norm(", "F.gelu(", "fused=True"):
        assert fused in outcome.text


def test_its_sums_are_right(script):
    module = script("gpt", "GPT").module
    assert [module.in_words(n) for n in (0, 13, 20, 41)] == ["zero", "thirteen", "twenty", "forty-one"]
    text = "".join(module.ALPHABET[i] for i in module.sums())
    assert "forty-one plus two is forty-three\n" in text and text.count("\n") == 2500
