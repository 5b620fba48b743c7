"""examples/gpt.py before and after. Its dropout is off: fused attention draws its random numbers in another order."""

import pytest
import torch

import autofuse

IDS = torch.randint(28, (2, 64), generator=torch.Generator().manual_seed(0))


def test_the_optimized_example_learns_the_same(script):
    outcome = script("gpt", "GPT", dropout=0.0).train_optimized(IDS)
    assert outcome.agreement.agrees, outcome.agreement.sentence
    assert "AF101" in outcome.fused
    assert outcome.fused & {"AF201", "AF203"} and outcome.fused & {"AF301", "AF304"}


@pytest.mark.parametrize("options", [(), ("--unsafe",)], ids=["safe", "unsafe"])
def test_the_rewritten_example_learns_the_same(script, tmp_path, options):
    outcome = script("gpt", "GPT", dropout=0.0).train_rewritten(tmp_path, *options)
    assert outcome.agreement.agrees, outcome.agreement.sentence
    for fused in ("F.scaled_dot_product_attention(", "ops.mlp(" if options else "F.gelu(", "fused=True"):
        assert fused in outcome.text
    # A norm is safe only if the text shows that its weight has the shape of the last dimension.
    assert "F.layer_norm(" in outcome.text or not options


@pytest.mark.night
def test_the_example_trains_with_dropout_after_rewrite_and_optimize(script, tmp_path):
    example = script("gpt", "GPT")
    rewritten = example.rewrite_module(tmp_path)
    assert all(loss < 4.5 for loss in rewritten.train(example.model(rewritten), 3, seed=0))
    model = autofuse.optimize(example.model(), IDS)
    assert all(loss < 4.5 for loss in example.module.train(model, 3, seed=0))


def test_the_sums_are_correct(script):
    module = script("gpt", "GPT").module
    assert [module.in_words(n) for n in (0, 13, 20, 41)] == ["zero", "thirteen", "twenty", "forty-one"]
    text = "".join(module.ALPHABET[i] for i in module.sums())
    assert "forty-one plus two is forty-three\n" in text and text.count("\n") == 2500
