"""Attention with one chosen kernel of torch: equal results, and reasons for calls that the kernel does not support."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn.attention import SDPBackend

from autofuse.kernels.operation import OPERATIONS
from autofuse.ops import attention_backends as backends
from autofuse.ops import reference

Agree = Callable[..., None]
PROVIDERS = {provider.name: provider for provider in backends.PROVIDERS}


@pytest.mark.parametrize("groups_beside_masks", [False, True])
@pytest.mark.parametrize("mask_kind", ["none", "causal", "boolean", "added"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_pinned_attention_agrees(assert_agree: Agree, groups: int, mask_kind: str, groups_beside_masks: bool) -> None:
    """Uses torch's formula as the chosen kernel, because a CPU has it. Heads are shared in groups."""
    q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, groups, 6, 8), torch.randn(2, groups, 6, 8)
    mask = {"boolean": torch.rand(2, 1, 6, 6) > 0.3, "added": torch.randn(6, 6)}.get(mask_kind)
    if mask is not None and mask.dtype is torch.bool:
        mask[..., 0] = True
    options = {"mask": mask, "scale": 0.3, "is_causal": mask_kind == "causal"}
    pinned = partial(backends._attend, SDPBackend.MATH, groups_beside_masks)
    ours = lambda q, k, v: pinned(q, k, v, **options)
    plain = lambda q, k, v: reference.attention(q, k, v, **options)
    assert_agree(ours, plain, q, k, v, terms=6 * 8)


@pytest.mark.parametrize("name", ["sdpa-cudnn", "sdpa-flash", "sdpa-efficient"])
def test_each_kernel_is_a_measured_choice_on_cuda_alone(name: str) -> None:
    provider = PROVIDERS[name]
    assert provider in OPERATIONS["attention"].providers and not provider.default and provider.devices == ("cuda",)
    q = torch.randn(1, 2, 4, 8)
    assert provider.check(q, q, q) == "It runs on CUDA only."
    assert "values as wide" in provider.check(q, q, torch.randn(1, 2, 4, 16))
    assert "number as scale" in provider.check(q, q, q, scale=torch.ones(()))


def test_masks_and_their_gradients_are_refused_if_a_kernel_does_not_support_them() -> None:
    q, mask = torch.randn(1, 2, 4, 8), torch.zeros(4, 4)
    assert "causal masks only" in PROVIDERS["sdpa-flash"].check(q, q, q, mask=mask)
    assert "CUDA" in PROVIDERS["sdpa-cudnn"].check(q, q, q, mask=mask)
    assert "no gradient for the mask" in PROVIDERS["sdpa-cudnn"].check(q, q, q, mask=mask.requires_grad_())


def test_heads_are_repeated_only_for_kernels_that_take_no_groups() -> None:
    half = torch.bfloat16
    q, k = torch.randn(1, 4, 3, 8, dtype=half), torch.randn(1, 2, 3, 8, dtype=half)
    given = backends.operands(q, k, k, torch.ones(3, 3, dtype=torch.bool), 1.0, False, None, False)
    assert backends._as_kernel_operands(given, True)[1].shape[1] == 2
    assert backends._as_kernel_operands(given, False)[1].shape[1] == 4
    unmasked = backends.operands(q, k, k, None, 1.0, False, None, False)
    assert backends._as_kernel_operands(unmasked, False)[3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["sdpa-cudnn", "sdpa-flash", "sdpa-efficient"])
def test_on_a_gpu_a_kernel_computes_the_calls_that_it_accepts(name: str) -> None:
    q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16)
    if PROVIDERS[name].check(q, q, q, scale=0.125, is_causal=True):
        pytest.skip("not on this GPU")
    found = PROVIDERS[name].run(q, q, q, scale=0.125, is_causal=True)
    expected = reference.attention(q.double(), q.double(), q.double(), scale=0.125, is_causal=True)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=0.05)
