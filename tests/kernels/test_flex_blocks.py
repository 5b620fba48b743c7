"""Blocks of scores that a mask leaves out: exactly those that keep nothing, for windows, documents and other masks."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from autofuse.kernels import flex, flex_blocks
from autofuse.kernels.flex_blocks import BLOCK, block_mask
from autofuse.kernels.packages import COMPILER

CPU = torch.device("cpu")
SIZES = [(256, 256), (300, 270), (256, 513)]


def masks(queries: int, keys: int) -> dict[str, Tensor]:
    q, k = torch.arange(queries)[:, None], torch.arange(keys)
    documents = torch.arange(max(queries, keys)) // 140
    return {
        "window": (q - k).abs() < 50,
        "causal window": (q >= k) & (q - k < 100),
        "documents": (documents[:queries, None] == documents[:keys])[None, None],
        "heads": torch.rand(1, 2, queries, keys) > 0.5,
        "batches of keys": torch.arange(keys).expand(2, 1, 1, keys) < 150,
        "nothing": torch.zeros(queries, keys, dtype=torch.bool),
    }


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("name", masks(1, 1))
def test_empty_blocks_are_skipped_and_full_blocks_need_no_mask(name: str, queries: int, keys: int) -> None:
    mask = masks(queries, keys)[name]
    found = block_mask(mask, False, queries, keys, CPU)
    whole = mask[(None,) * (4 - mask.ndim)].expand(*mask[(None,) * (4 - mask.ndim)].shape[:2], queries, keys)
    padded = torch.nn.functional.pad(whole, (0, -keys % BLOCK, 0, -queries % BLOCK))
    blocks = padded.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))
    assert torch.equal(found.to_dense().bool(), blocks.any(-1).any(-2))
    assert torch.equal(found.full_kv_num_blocks, blocks.all(-1).all(-2).sum(-1).int())


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("name", ["none", *masks(1, 1)])
def test_attention_with_blocks_equals_that_with_the_dense_mask(name: str, queries: int, keys: int) -> None:
    """With torch's formula for FlexAttention, which calls the same functions."""
    q, k, v = (torch.randn(2, 2, n, 16) for n in (queries, keys, keys))
    mask, causal = masks(queries, keys).get(name), name == "none"
    modified, blocks = flex.modifications(q, k, mask, causal, 0.25, 0.0)
    assert blocks is not None
    found = flex_attention(q, k, v, score_mod=modified, block_mask=blocks, scale=1.0)
    kept = torch.ones(queries, keys, dtype=torch.bool).tril() if mask is None else mask
    scores = (q @ k.mT * 0.25).masked_fill(~kept, -torch.inf)
    expected = torch.softmax(scores, -1).nan_to_num(0.0) @ v
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_mask_is_read_again_after_a_write() -> None:
    mask = torch.ones(256, 256, dtype=torch.bool)
    before = block_mask(mask, False, 256, 256, CPU)
    mask.data[:, 128:] = False  # which torch's counter of versions does not see
    after = block_mask(mask, False, 256, 256, CPU)
    assert int(before.to_dense().sum()) == 4 and int(after.to_dense().sum()) == 2


def test_a_causal_mask_is_made_once_for_each_pair_of_lengths() -> None:
    first = block_mask(None, True, 256, 384, CPU)
    assert block_mask(None, True, 256, 384, CPU) is first
    assert block_mask(None, True, 384, 384, CPU) is not first
    assert block_mask(None, False, 384, 384, CPU) is None


def test_few_scores_and_added_masks_have_no_block_mask() -> None:
    assert block_mask(torch.ones(100, 300, dtype=torch.bool), False, 100, 300, CPU) is None
    q = torch.randn(1, 1, 300, 16)
    assert flex.modifications(q, q, torch.randn(300, 300), False, 1.0, 0.0)[1] is None


@pytest.mark.night
@pytest.mark.skipif(bool(COMPILER.missing()), reason="there is no C++ compiler")
def test_the_compiled_kernel_for_cpus_skips_the_blocks() -> None:
    q, k, v = (torch.randn(1, 2, 300, 16) for _ in range(3))
    window = (torch.arange(300)[:, None] - torch.arange(300)).abs() < 50
    found = flex.attend(q, k, v, window, False, 0.25)
    scores = (q @ k.mT * 0.25).masked_fill(~window, -torch.inf)
    torch.testing.assert_close(found, torch.softmax(scores, -1) @ v, rtol=1e-4, atol=1e-5)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The masks that were read. On the meta device, as on a GPU, only writes that autograd counts are noticed."""
    found: list[Tensor] = []
    read = flex_blocks._read_blocks
    monkeypatch.setattr(flex_blocks, "_read_blocks", lambda mask, *sizes: found.append(mask) or read(mask, *sizes))
    return found


def meta_mask() -> Tensor:
    return torch.ones(2, 1, 256, 300, dtype=torch.bool, device="meta")


def test_all_layers_share_the_blocks_of_one_mask(reads: list[Tensor]) -> None:
    mask = meta_mask()
    blocks = [
        block_mask(m, False, 256, 300, mask.device)
        for m in (mask, mask, mask[:, :, :, :300], mask.expand(2, 4, -1, -1))
    ]
    assert len(reads) == 2  # the last one has another shape
    assert blocks[0].kv_indices is blocks[1].kv_indices is blocks[2].kv_indices


@pytest.mark.parametrize("write", [
    lambda mask: mask.logical_not_(), lambda mask: mask[0].fill_(False), lambda mask: mask.set_(meta_mask()),
])  # fmt: skip
def test_a_mask_on_a_gpu_is_read_again_after_a_write(reads: list[Tensor], write: Callable[[Tensor], object]) -> None:
    mask = meta_mask()
    before = block_mask(mask, False, 256, 300, mask.device)
    write(mask)
    after = block_mask(mask, False, 256, 300, mask.device)
    assert len(reads) == 2 and after.kv_indices is not before.kv_indices


def test_blocks_do_not_keep_their_mask_alive(reads: list[Tensor]) -> None:
    mask = meta_mask()
    seen = weakref.ref(mask)
    known = len(flex_blocks._READ)
    block_mask(mask, False, 256, 300, mask.device)
    assert len(flex_blocks._READ) == known + 1
    reads.clear()
    del mask
    assert seen() is None and len(flex_blocks._READ) == known


@pytest.mark.parametrize("window", [(100, 0), (0, 0), (60, 130), (300, 5)])
@pytest.mark.parametrize("length", [256, 300])
def test_a_window_needs_no_mask_and_is_made_once(window: tuple[int, int], length: int) -> None:
    q, k, v = (torch.randn(2, 2, length, 16) for _ in range(3))
    ahead = torch.arange(length) - torch.arange(length)[:, None]
    mask = (ahead <= window[1]) & (ahead >= -window[0])
    modified, blocks = flex.modifications(q, k, mask, False, 0.25, 0.0, window)
    assert flex.modifications(q, k, mask.logical_not(), False, 0.25, 0.0, window)[1] is blocks
    assert torch.equal(
        blocks.to_dense().bool()[0, 0], block_mask(mask, False, length, length, CPU).to_dense()[0, 0] > 0
    )
    found = flex_attention(q, k, v, score_mod=modified, block_mask=blocks, scale=1.0)
    scores = (q @ k.mT * 0.25).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(found, torch.softmax(scores, -1) @ v, rtol=1e-4, atol=1e-5)
    few = torch.randn(1, 1, 20, 16)
    assert flex.modifications(few, few, torch.ones(20, 20, dtype=torch.bool), False, 1.0, 0.0, (3, 0))[1] is None
