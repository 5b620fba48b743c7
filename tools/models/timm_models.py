"""Models of timm with its hand-written attention, which it uses when fused attention is switched off."""

from __future__ import annotations

from typing import Any

import timm
import torch
from timm.layers import set_fused_attn
from torch import Tensor, nn

from tools.models.row import Row, without_dropout

_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
_WINDOWS = {"img_size": 64, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2), "window_size": 4}
_STAGES = {"depths": (1, 1, 1, 1), "embed_dims": (16, 16, 32, 32), "num_heads": (2, 2, 2, 2)}


def _row(name: str, size: int = 32, expects: tuple[str, ...] = ("AF101",), note: str = "", **options: Any) -> Row:
    def make() -> nn.Module:
        set_fused_attn(False)
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=5, **options)
        return without_dropout(model)

    def inputs() -> Tensor:
        return torch.randn(2, 3, size, size)

    return Row(name, "timm", make, inputs, expects, note)


ROWS = (
    _row("vit_tiny_patch16_224", expects=("AF101", "AF203", "AF304"), **_VIT),
    _row("deit3_small_patch16_224", **_VIT),
    _row("vit_relpos_small_patch16_224", note="a child adds a bias that its MLP makes of offsets", **_VIT),
    _row("beit_base_patch16_224", **_VIT),
    _row("eva02_tiny_patch14_224", expects=("AF101", "AF303", "AF402"), **_VIT),
    _row("vit_medium_patch16_rope_reg1_gap_256", expects=("AF101", "AF402"), **_VIT),
    _row("vit_small_patch16_dinov3", expects=("AF101", "AF401"), **_VIT),
    _row("vit_base_patch16_siglip_224", **_VIT),
    _row("aimv2_large_patch14_224", expects=("AF101", "AF303"), **_VIT),
    _row("naflexvit_base_patch16_gap", 64, embed_dim=32, depth=2, num_heads=2),
    _row("swin_tiny_patch4_window7_224", 64, **_WINDOWS),
    _row("swinv2_tiny_window8_256", 64, **_WINDOWS),
    _row("samvit_base_patch16", 64, window_size=4, global_attn_indexes=(1,), **{**_VIT, "img_size": 64}),
    _row("cait_xxs24_224", note="mixes heads before and after the softmax; only its class attention is plain", **_VIT),
    _row("convit_tiny", note="half of it is gated positional attention, a sum of two softmaxes",
         **{**_VIT, "embed_dim": 16, "depth": 4, "local_up_to_layer": 2}),
    _row("twins_pcpvt_small", 64, img_size=64, **_STAGES),
    _row("pvt_v2_b2_li", 64, depths=(1, 1, 1, 1), embed_dims=(16, 16, 32, 32), num_heads=(1, 2, 2, 2)),
    _row("davit_tiny", 64, **_STAGES),
    _row("hiera_tiny_224", 64, img_size=64, embed_dim=16, stages=(1, 1, 1, 1)),
    _row("tnt_s_patch16_224", 64, img_size=64, embed_dim=32, inner_dim=8, depth=2, num_heads_inner=2,
         num_heads_outer=2),
    _row("convnext_atto", 64, (), "depthwise convolutions: nothing of it is attention", depths=(1, 1, 1, 1),
         dims=(8, 16, 16, 16)),
)  # fmt: skip
