"""Attention in blocks against the formula with the same weights dropped, and the operator under torch's wrappers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from autofuse.kernels.compiled import attention as kernel
from autofuse.kernels.compiled import blocks as cut
from autofuse.kernels.compiled_regions import region
from autofuse.ops import attention_blocks as blocks
from autofuse.ops import reference

B, H, T, S, D, DV = 2, 4, 13, 17, 8, 6
_BOTH = "weights gradient"
FORWARD = torch.ops.autofuse.attention_blocks.default


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(cut, "ELEMENTS", (150, 150))  # fewer than a head's scores: its queries are cut
    monkeypatch.setattr(cut, "_FEWEST_ROWS", 4)
    monkeypatch.setattr(cut, "_FEWEST_CAUSAL", 4)
    monkeypatch.setattr(kernel, "drop", kernel.drop.function)  # compiled for each size of a block, it takes long
    monkeypatch.setattr(kernel, "drop_with_gradient", kernel.drop_with_gradient.function)
    cut.blocks.cache_clear()


def operands(groups: int = H, dtype: torch.dtype = torch.float64, t: int = T, s: int = S) -> list[Tensor]:
    """The query is laid out as (B, T, H, d), as projections give it."""
    query = torch.randn(B, t, H, D, dtype=torch.float64).transpose(1, 2)
    key, value = torch.randn(B, groups, s, D, dtype=torch.float64), torch.randn(B, groups, s, DV, dtype=torch.float64)
    return [x.to(dtype).requires_grad_() for x in (query, key, value)]


def expected_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, causal: bool, cap: float, seed: Tensor
) -> Tensor:
    """The formula, with the kernel's own dropout factors."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    eye = torch.eye(key.shape[-2], dtype=value.dtype).expand(*value.shape[:2], -1, -1)
    if cap:
        weights = reference.soft_capped_attention(query, key, eye, cap=cap, scale=0.4, mask=mask)
    else:
        weights = reference.attention(query, key, eye, mask=mask, scale=0.4, is_causal=causal)
    if p:
        kept = blocks.kept_weights(seed, tuple(weights.shape), causal, p, 150)
        weights = weights * kept / (1 - p)
    return weights @ value


MASKS = {
    "none": None,
    "keys": lambda: torch.rand(B, 1, 1, S) > 0.3,
    "queries": lambda: (torch.rand(T, 1) > 0.2).logical_or(torch.arange(T)[:, None] == 0),
    "rows without keys": lambda: torch.rand(B, H, T, S) > 0.95,
    "a bias a head": lambda: torch.randn(1, H, T, S, dtype=torch.float64).requires_grad_(),
    "a bias a key": lambda: torch.randn(S, dtype=torch.float64).requires_grad_(),
    "a bias": lambda: torch.randn(B, H, T, S, dtype=torch.float64).requires_grad_(),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("cap", [0.0, 3.0])
@pytest.mark.parametrize("kept", [0, 2**25])
def test_results_and_gradients_are_those_of_the_formula_with_the_same_weights_dropped(
    mask: Any, p: float, cap: float, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "KEPT_BYTES", kept)
    given = mask() if mask else None
    if cap and given is not None and given.dtype is torch.bool:
        given = given | (torch.arange(given.shape[-1]) == 0)  # rows without keys are nan there
    for groups in (H, 2, 1):
        compare(operands(groups), given, p, False, cap)


@pytest.mark.parametrize("lengths", [(T, T), (T, S), (S, T), (1, S), (T, 1)])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_causal_blocks_leave_out_what_no_query_sees(lengths: tuple[int, int], p: float) -> None:
    compare(operands(2, t=lengths[0], s=lengths[1]), None, p, True, 0.0)


def compare(given: list[Tensor], mask: Tensor | None, p: float, causal: bool, cap: float) -> None:
    torch.manual_seed(1)
    found = blocks.attention_by_blocks(*given, mask, p, causal, 0.4, cap)
    torch.manual_seed(1)
    right = expected_attention(*given, mask, p, causal, cap, blocks.draw_seed(torch.device("cpu")))
    leaves = [*given, *([mask] if mask is not None and mask.requires_grad else [])]
    upstream = torch.randn_like(right)
    close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
    close(found, right)
    pairs = zip(torch.autograd.grad(found, leaves, upstream), torch.autograd.grad(right, leaves, upstream), strict=True)
    for one, other in pairs:
        close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_errors_in_half_and_single_precision_are_within_rounding(dtype: torch.dtype, causal: bool) -> None:
    given = operands(2, dtype)
    exact = [x.detach().double().requires_grad_() for x in given]
    found = blocks.attention_by_blocks(*given, None, 0.0, causal, 0.4)
    right = expected_attention(*exact, None, 0.0, causal, 0.0, torch.zeros(1))
    upstream = torch.randn_like(right).to(dtype)
    results = [found, *torch.autograd.grad(found, given, upstream)]
    truths = [right, *torch.autograd.grad(right, exact, upstream.double())]
    for result, truth in zip(results, truths, strict=True):
        bound = 8 * (S + D) ** 0.5 * torch.finfo(dtype).eps * truth.abs().max().clamp(min=1.0)
        assert result.dtype is dtype and (result.double() - truth).abs().max() <= bound


def test_compiled_and_plain_functions_drop_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = tuple(region(rows)(f) for rows, f in (("weights", kernel.drop), (_BOTH, kernel.drop_with_gradient)))
    monkeypatch.setattr(cut, "ELEMENTS", (2**18, 2**18))
    given, results = operands(dtype=torch.float32), []
    for _ in range(2):
        torch.manual_seed(1)
        found = blocks.attention_by_blocks(*given, None, 0.3, False, 0.4)
        results.append([found, *torch.autograd.grad(found.square().sum(), given)])
        monkeypatch.setattr(kernel, "drop", compiled[0])
        monkeypatch.setattr(kernel, "drop_with_gradient", compiled[1])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_the_requested_share_of_weights_is_dropped_uniformly() -> None:
    shape, p = (2, 8, 64, 128), 0.25
    kept = blocks.kept_weights(torch.tensor([7]), shape, False, p, 5000).double()
    deviation = math.sqrt(p * (1 - p) / kept.numel())
    assert abs(kept.mean() - (1 - p)) < 4 * deviation
    for dims in ((0, 1, 2), (0, 1, 3), (2, 3)):  # by key, by query, by head
        share = kept.mean(dims)
        assert (share - (1 - p)).abs().max() < 6 * math.sqrt(p * (1 - p) * share.numel() / kept.numel())
    assert not torch.equal(kept, blocks.kept_weights(torch.tensor([8]), shape, False, p, 5000).double())


def test_a_dropout_probability_of_1_drops_everything() -> None:
    given = operands()
    found = blocks.attention_by_blocks(*given, None, 1.0, False, 0.4)
    assert not found.any() and not any(g.any() for g in torch.autograd.grad(found.sum(), given))


def test_gradients_agree_with_finite_differences_and_have_gradients_themselves() -> None:
    small = [x[:1, :2, :3].detach().requires_grad_() for x in operands()]
    mask = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)

    def run(*given: Tensor) -> Tensor:
        torch.manual_seed(3)
        return blocks.attention_by_blocks(*given, 0.3, False, 0.4, 2.0)

    assert torch.autograd.gradcheck(run, (*small, mask))
    assert torch.autograd.gradgradcheck(run, (*small, mask))


def test_a_mask_and_values_that_need_no_gradient_get_none() -> None:
    query, key, value = operands()
    found = blocks.attention_by_blocks(query, key.detach(), value.detach(), torch.randn(T, S).double(), 0.0, False, 0.4)
    found.sum().backward()
    assert query.grad is not None and key.grad is None and value.grad is None


@pytest.mark.parametrize("empty", ["queries", "keys", "batch"])
def test_empty_operands_give_zeros(empty: str) -> None:
    given = [x.detach() for x in operands(t=0 if empty == "queries" else T, s=0 if empty == "keys" else S)]
    given = [(x[:0] if empty == "batch" else x).requires_grad_() for x in given]
    for p in (0.0, 0.3):
        found = blocks.attention_by_blocks(*given, None, p, False, 0.4)
        assert not found.any() and found.shape == (*given[0].shape[:3], DV)
        assert not any(g.any() for g in torch.autograd.grad(found.sum(), given))


@pytest.mark.parametrize("keep", [False, True])
def test_it_passes_torchs_checks_of_operators(keep: bool) -> None:
    mask = torch.randn(1, H, T, S, dtype=torch.float64, requires_grad=True)
    seed = torch.tensor([5])
    torch.library.opcheck(FORWARD, (*operands(2), mask, seed, 0.2, False, 0.4, 0.0, 150, keep))
    if not keep:  # what is kept has no more entries than causal blocks need, and the others are not written
        torch.library.opcheck(FORWARD, (*operands(2), None, None, 0.0, True, 0.4, 3.0, 150, keep))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(D, 3 * D)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).unflatten(-1, (3, 2, D // 2)).permute(2, 0, 3, 1, 4)
        seed = torch.randint(2**62, (1,))
        made: Tensor = FORWARD(query, key, value, None, seed, 0.3, True, 0.5, 0.0, 50, False)[0]
        return made


def gradients(run: Any, module: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(2)
    return torch.autograd.grad(run(x).square().sum(), list(module.parameters()))


def test_it_compiles_into_one_graph_exports_and_works_in_checkpoints() -> None:
    module, x = Attention(), torch.randn(2, 9, D)
    right = gradients(module, module, x)
    ways = {
        "compiled": torch.compile(module, fullgraph=True, backend="aot_eager"),
        "checkpointed": partial(checkpoint, module, use_reentrant=False),
    }
    for way in ways.values():
        for one, other in zip(gradients(way, module, x), right, strict=True):
            torch.testing.assert_close(one, other)
    exported = torch.export.export(module, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=2)}})
    assert FORWARD in {node.target for node in exported.graph.nodes}
    torch.manual_seed(2)
    first = exported.module()(x)
    torch.manual_seed(2)
    torch.testing.assert_close(first, module(x))


def test_autocast_around_it_changes_nothing() -> None:
    given = operands(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = blocks.attention_by_blocks(*given, None, 0.0, False, 0.4)
    assert torch.equal(inside, blocks.attention_by_blocks(*given, None, 0.0, False, 0.4))


def test_its_flops_are_those_of_the_formula() -> None:
    given = operands(dtype=torch.float32)

    def count(run: Any) -> int:
        with FlopCounterMode(display=False) as counter:
            run().sum().backward()
        return int(counter.get_total_flops())

    def unfused_attention() -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return nn.functional.scaled_dot_product_attention(*given, scale=0.4)

    assert count(lambda: blocks.attention_by_blocks(*given, None, 0.0, False, 0.4)) == count(unfused_attention)


def test_blocks_stay_within_their_size_and_contain_every_score_once() -> None:
    for shape in ((2, 4, 13, 17), (1, 1, 1, 1000), (3, 5, 40, 3), (1, 2, 200, 300)):
        for causal in (False, True):
            seen = torch.zeros(shape)
            start = 0
            for group in cut.blocks(*shape, causal, 600):
                for block in group:
                    assert block.start == start
                    start += math.prod(block.shape)
                    seen[block.batches, block.heads, block.queries, : block.keys] += 1
                    assert math.prod(block.shape) <= max(600, 4 * shape[3])
            after = torch.ones(shape[2:]).triu(1).bool() if causal else torch.zeros(shape[2:]).bool()
            assert seen.max() == 1 and seen.masked_fill(after, 1).min() == 1
