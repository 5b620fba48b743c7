"""A model that builds its mask with functions of transformers computes no mask for fused attention."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.ops import lazy_masks
from autofuse.ops.lazy_masks import LazyMask, lazy_at_any_size

transformers = pytest.importorskip("transformers")
create_causal_mask = pytest.importorskip("transformers.masking_utils").create_causal_mask

WIDTH, HEADS = 16, 2


@pytest.fixture(autouse=True)
def however_small_masks() -> Iterator[None]:
    """Make small masks lazy too."""
    with lazy_at_any_size():
        yield


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * 0.3 + mask
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = transformers.LlamaConfig(
            hidden_size=WIDTH, num_attention_heads=HEADS, attn_implementation="eager"
        )
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        mask = create_causal_mask(config=self.config, inputs_embeds=x, attention_mask=None, past_key_values=None)
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


@pytest.fixture
def created_masks(monkeypatch: pytest.MonkeyPatch) -> list[LazyMask]:
    """All lazy masks that are created."""
    found: list[LazyMask] = []
    of = LazyMask.of

    def record_mask(form: Any) -> LazyMask:
        found.append(of(form))
        return found[-1]

    monkeypatch.setattr(lazy_masks.LazyMask, "of", staticmethod(record_mask))
    return found


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    result = model(x)
    result.square().mean().backward()
    return {"result": result.detach(), **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}


def test_the_mask_is_never_computed_and_steps_are_equal(created_masks: list[LazyMask]) -> None:
    torch.manual_seed(0)
    plain, x = Decoder().double(), torch.randn(2, 12, WIDTH, dtype=torch.float64)
    model = autofuse.optimize(copy.deepcopy(plain), (x,), tune=False)
    sites = [s for s in autofuse.report(model) if "create_causal_mask" in s.kernel]
    assert [(s.rule, s.status, s.module, bool(s.line)) for s in sites] == [("AF101", "fused", "", True)]
    model(x)  # the first call inspects the mask
    created_masks.clear()
    for step in range(2):
        torch.testing.assert_close(gradients(model, x), gradients(plain, x), rtol=1e-11, atol=1e-12)
        assert len(created_masks) == step + 1 and not any(mask.is_made for mask in created_masks)
    autofuse.restore(model)
    model(x)
    assert len(created_masks) == 2


@pytest.mark.parametrize("options", [{"ignore": "AF101"}, {"modules": "layers.*"}], ids=["rule", "modules"])
def test_options_can_keep_masks_plain(options: dict[str, Any], created_masks: list[LazyMask]) -> None:
    x = torch.randn(2, 12, WIDTH)
    model = autofuse.optimize(Decoder(), (x,), tune=False, **options)
    model(x), model(x)
    assert not created_masks and not [s for s in autofuse.report(model) if "create_causal_mask" in s.kernel]


def test_a_layer_that_is_not_fused_reads_the_mask(created_masks: list[LazyMask]) -> None:
    torch.manual_seed(0)
    plain, x = Decoder().double(), torch.randn(2, 12, WIDTH, dtype=torch.float64)
    model = autofuse.optimize(copy.deepcopy(plain), (x,), tune=False, modules=lambda name, _: name != "layers.1")
    for _ in range(2):
        torch.testing.assert_close(gradients(model, x), gradients(plain, x), rtol=1e-11, atol=1e-12)
    assert created_masks and all(mask.is_made for mask in created_masks)
