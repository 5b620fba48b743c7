"""examples/vit.py before and after."""

import pytest
import torch


@pytest.mark.night
def test_the_optimized_example_learns_the_same(script):
    example = script("vit", "ViT")
    images, _ = example.module.batch(example.module.Config(), torch.Generator().manual_seed(0))
    outcome = example.train_optimized(images)
    assert outcome.agreement.agrees, outcome.agreement.sentence
    assert "AF101" in outcome.fused and outcome.fused & {"AF201", "AF203"}


@pytest.mark.parametrize("options", [(), pytest.param(("--unsafe",), marks=pytest.mark.night)], ids=["safe", "unsafe"])
def test_the_rewritten_example_learns_the_same(script, tmp_path, options):
    outcome = script("vit", "ViT").train_rewritten(tmp_path, *options)
    assert outcome.agreement.agrees, outcome.agreement.sentence
    for fused in ("F.scaled_dot_product_attention(", "fused=True"):
        assert fused in outcome.text
    # A norm is safe only if the text shows that its weight has the shape of the last dimension.
    assert "F.layer_norm(" in outcome.text or not options


def test_patches_are_in_row_major_order(script):
    example = script("vit", "ViT")
    images = torch.arange(32 * 32.0).view(1, 32, 32)
    patches = example.model().patchify(images)
    assert patches.shape == (1, 64, 16)
    assert torch.equal(patches[0, 9].view(4, 4), images[0, 4:8, 4:8])
