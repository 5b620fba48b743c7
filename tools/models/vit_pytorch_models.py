"""Models of vit-pytorch: attention as papers write it, with einops."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tools.models.row import Row, without_dropout

importlib.import_module("vit_pytorch")  # where it is missing, no row of this file is offered

_SMALL = {
    "image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 48,
    "dim_head": 16, "cls_depth": 1,
}  # fmt: skip


def _image() -> Tensor:
    return torch.randn(2, 3, 32, 32)


def _large_image() -> Tensor:
    return torch.randn(2, 3, 64, 64)


def _video() -> Tensor:
    return torch.randn(2, 3, 4, 32, 32)


def _row(
    module: str, name: str, inputs: Callable[[], Any] = _image, expects: tuple[str, ...] = ("AF101",),
    note: str = "", **options: Any,
) -> Row:  # fmt: skip
    def make() -> nn.Module:
        kind = getattr(importlib.import_module(f"vit_pytorch.{module}"), name)
        taken = inspect.signature(kind).parameters
        return without_dropout(kind(**{k: v for k, v in _SMALL.items() if k in taken} | options))

    return Row(f"{module}.{name}", "vit-pytorch", make, inputs, expects, note)


ROWS = (
    _row("vit", "ViT", expects=("AF101", "AF304")),
    _row("simple_vit", "SimpleViT"),
    _row("cait", "CaiT", expects=("AF304",), note="mixes heads before and after the softmax"),
    _row("deepvit", "DeepViT", expects=("AF304",), note="mixes and normalises heads after the softmax"),
    _row("parallel_vit", "ViT"),
    _row("simple_vit_with_qk_norm", "SimpleViT"),
    _row("simple_vit_with_value_residual", "SimpleViT"),
    _row("rvt", "RvT", expects=("AF101", "AF303", "AF402")),
    _row("look_vit", "LookViT", _large_image, ("AF101", "AF201"), "one of its attentions returns its scores",
         image_size=64, patch_size=16, highres_patch_size=8, cross_attn_heads=2, cross_attn_dim_head=8),
    _row("regionvit", "RegionViT", _large_image, note="calls one attention with a bias and without",
         dim=(16, 16, 32, 32), depth=(1, 1, 1, 1), window_size=2, local_patch_size=4),
    _row("scalable_vit", "ScalableViT", _large_image, dim=16, heads=(1, 2), depth=(1, 1), ssa_dim_key=(8, 8),
         ssa_dim_value=(8, 8), window_size=(4, None), reduction_factor=(2, 1)),
    _row("vivit", "ViViT", _video, image_patch_size=8, frames=4, frame_patch_size=2, spatial_depth=1, temporal_depth=1,
         use_flash_attn=False),
    _row("xcit", "XCiT"),
)  # fmt: skip
