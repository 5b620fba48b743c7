"""examples/bert.py before and after. Its dropout is off: fused attention draws its random numbers in another order."""

import torch


def test_it_learns_the_same_once_optimized(script):
    example = script("bert", "Bert", dropout=0.0)
    ids, mask, _ = example.module.batch(example.module.Config(), torch.Generator().manual_seed(0))
    outcome = example.optimized((ids, mask))
    assert outcome.agreement.agrees, outcome.agreement.sentence
    assert outcome.fused & {"AF201", "AF203"} and outcome.fused >= {"AF101", "AF301"}


def test_it_learns_the_same_once_rewritten(script, tmp_path):
    outcome = script("bert", "Bert", dropout=0.0).rewritten(tmp_path)
    assert outcome.agreement.agrees, outcome.agreement.sentence
    for fused in ("scaled_dot_product_attention(", "layer_norm(", "gelu(", "fused=True"):
        assert fused in outcome.text


def test_padding_is_hidden_from_the_loss(script):
    module = script("bert", "Bert").module
    ids, mask, labels = module.batch(module.Config(), torch.Generator().manual_seed(1))
    assert (ids[mask == 0] == module.PADDING).all() and (labels[mask == 0] == module.IGNORED).all()
    assert (ids[labels != module.IGNORED] == module.MASK).all()
