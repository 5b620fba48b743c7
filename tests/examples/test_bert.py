"""examples/bert.py before and after. Its dropout is off: fused attention draws its random numbers in another order."""

import pytest
import torch

import autofuse


@pytest.mark.night
def test_the_optimized_example_learns_the_same(script):
    example = script("bert", "Bert", dropout=0.0)
    ids, mask, _ = example.module.batch(example.module.Config(), torch.Generator().manual_seed(0))
    outcome = example.train_optimized((ids, mask))
    assert outcome.agreement.agrees, outcome.agreement.sentence
    assert "AF101" in outcome.fused
    assert outcome.fused & {"AF201", "AF203"} and outcome.fused & {"AF301", "AF304"}


@pytest.mark.parametrize("options", [(), ("--unsafe",)], ids=["safe", "unsafe"])
def test_the_rewritten_example_learns_the_same(script, tmp_path, options):
    outcome = script("bert", "Bert", dropout=0.0).train_rewritten(tmp_path, *options)
    assert outcome.agreement.agrees, outcome.agreement.sentence
    for fused in ("ops.mlp(" if options else "gelu(", "fused=True"):
        assert fused in outcome.text
    # The mask adds the least number of the dtype, and may drop all keys of a row.
    assert ("scaled_dot_product_attention(" in outcome.text) == bool(options)
    # A norm is safe only if the text shows that its weight has the shape of the last dimension.
    assert "layer_norm(" in outcome.text or not options


def test_the_example_trains_with_dropout_after_rewrite_and_optimize(script, tmp_path):
    example = script("bert", "Bert")
    rewritten = example.rewrite_module(tmp_path)
    assert all(loss < 4.5 for loss in rewritten.train(example.model(rewritten), 3, seed=0))
    model = autofuse.optimize(example.model(), example.module.batch(example.module.Config(), torch.Generator())[:2])
    assert all(loss < 4.5 for loss in example.module.train(model, 3, seed=0))


def test_padding_is_hidden_from_the_loss(script):
    module = script("bert", "Bert").module
    ids, mask, labels = module.batch(module.Config(), torch.Generator().manual_seed(1))
    assert (ids[mask == 0] == module.PADDING).all() and (labels[mask == 0] == module.IGNORED).all()
    assert (ids[labels != module.IGNORED] == module.MASK).all()
