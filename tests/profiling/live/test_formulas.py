"""Executed FLOPs and model FLOPs of single operators. Fused operators have the model FLOPs of the code that they
replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.kernels.policy import using
from autofuse.ops.attention_blocks import attention_by_blocks
from autofuse.ops.linear_cross_entropy import linear_cross_entropy
from autofuse.ops.mlp import mlp
from autofuse.profiling.live.counting import Counting
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.results.profile import Flops

B, H, T, D = 2, 4, 24, 8
SCORES = 2 * B * H * T * T * D  # one product of attention


def counted(run: Callable[..., Any], *operands: Tensor) -> Flops:
    with Counting(ModuleNames({})) as counting:
        made = run(*operands)
        if made.requires_grad:
            made.sum().backward()
    return counting.flops


def tensors(*shapes: Sequence[int], trained: Sequence[int] | None = None) -> list[Tensor]:
    """Tensors. Those at the places in `trained` require a gradient; all of them if it is None."""
    return [torch.randn(*s, requires_grad=trained is None or i in trained) for i, s in enumerate(shapes)]


def spelled_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.mT, -1) @ value


def by_blocks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attention_by_blocks(query, key, value, None, 0.0, False, 1.0)


@pytest.mark.parametrize("fused", [by_blocks, F.scaled_dot_product_attention])
@pytest.mark.parametrize(
    ("trained", "products"), [([], 2), ([2], 3), ([0], 4), ([1], 4), ([0, 1], 5), ([0, 2], 5), ([0, 1, 2], 6)]
)
def test_attention_counts_the_products_of_the_gradients_that_are_needed(
    fused: Any, trained: list[int], products: int
) -> None:
    shapes = [(B, H, T, D)] * 3

    assert counted(spelled_attention, *tensors(*shapes, trained=trained)).model == products * SCORES
    assert counted(fused, *tensors(*shapes, trained=trained)).model == products * SCORES


def test_recomputed_scores_count_as_executed_and_not_as_model_flops() -> None:
    flops = counted(F.scaled_dot_product_attention, *tensors(*[(B, H, T, D)] * 3))

    assert (flops.model, flops.hardware) == (6 * SCORES, 7 * SCORES)


def test_a_mask_does_not_reduce_the_flops() -> None:
    operands = tensors(*[(B, H, T, D)] * 3)

    assert counted(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), *operands).model == 6 * SCORES


def test_groups_of_queries_share_keys_and_cost_as_much() -> None:
    query, key, value = tensors((B, H, T, D), (B, 2, T, D), (B, 2, T, D))

    fused = counted(lambda *x: F.scaled_dot_product_attention(*x, enable_gqa=True), query, key, value)

    assert fused.model == 6 * SCORES


ROWS, WIDTH, CLASSES = 1024, 16, 128
LOGITS = 2 * ROWS * WIDTH * CLASSES


@pytest.mark.parametrize("policy", ["speed", "memory"])
@pytest.mark.parametrize("trained", [[0, 1], [0], [1], []])
def test_a_loss_in_blocks_counts_its_logits_once_in_model_flops(policy: Any, trained: list[int]) -> None:
    targets = torch.randint(0, CLASSES, (ROWS,))
    operands = tensors((ROWS, WIDTH), (CLASSES, WIDTH), trained=trained)

    with using(policy=policy, providers=frozenset({"torch"})):
        flops = counted(lambda x, weight: linear_cross_entropy(x, weight, targets), *operands)

    again = LOGITS if policy == "memory" and trained else 0
    assert flops.model == (1 + len(trained)) * LOGITS
    assert flops.hardware == flops.model + again


def spelled_mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, up)), down)


@pytest.mark.parametrize("trained", [[0, 1, 2], [2]])
def test_a_fused_mlp_has_the_model_flops_of_its_layers(trained: list[int]) -> None:
    shapes = (1024, 64), (96, 64), (64, 96)

    before = counted(spelled_mlp, *tensors(*shapes, trained=trained))
    after = counted(lambda x, up, down: mlp(x, up, None, down, None), *tensors(*shapes, trained=trained))

    assert after.model == before.model


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_a_grouped_convolution_has_fewer_flops_in_both_directions(groups: int) -> None:
    x, weight = tensors((2, 6, 8, 8), (12, 6 // groups, 3, 3))

    flops = counted(lambda x, weight: F.conv2d(x, weight, padding=1, groups=groups), x, weight)

    assert flops.model == 3 * 2 * 2 * 8 * 8 * 12 * (6 // groups) * 9


def test_a_transposed_convolution_meets_each_input_once() -> None:
    x, weight = tensors((2, 6, 5, 5), (6, 4, 2, 2))

    assert counted(lambda x, w: F.conv_transpose2d(x, w, stride=2), x, weight).model == 3 * 2 * 2 * 5 * 5 * 6 * 4 * 4


@pytest.mark.parametrize(
    ("run", "product"),
    [
        (lambda: torch.ones(3, 4) @ torch.ones(4), 2 * 12),
        (lambda: torch.ones(4) @ torch.ones(4), 2 * 4),
        (lambda: torch.addmv(torch.ones(3), torch.ones(3, 4), torch.ones(4)), 2 * 12),
        (lambda: torch.ones(2, 3, 4) @ torch.ones(4, 5), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.addbmm(torch.ones(3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.einsum("bij,bkj->bik", torch.ones(2, 3, 4), torch.ones(2, 5, 4)), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.ones(3, 4) * torch.ones(3, 4), 0),
    ],
)
def test_products_take_two_for_each_pair_of_entries(run: Any, product: int) -> None:
    assert counted(run).model == product


def test_a_transformer_layer_has_the_same_flops_as_one_operator() -> None:
    layer, x = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.0), torch.randn(2, 16, 32)

    with torch.no_grad():
        whole = counted(layer.eval(), x)
    parts = counted(lambda x: layer.train()(x).detach(), x)

    assert whole.model == parts.model == 2 * 2 * 16 * (4 * 32**2 + 2 * 32 * 48 + 2 * 16 * 32)


def test_a_recurrent_layer_multiplies_its_input_and_its_state_at_each_step() -> None:
    layer, x = nn.LSTM(8, 16), torch.randn(5, 2, 8, requires_grad=True)

    assert counted(lambda x: layer(x)[0], x).model == 3 * 2 * 5 * 2 * 4 * 16 * (8 + 16)


def test_a_tensor_of_a_kind_that_no_formula_knows_is_named_and_does_no_harm() -> None:
    ragged = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])

    flops = counted(lambda: nn.functional.linear(ragged, torch.ones(5, 4)).to_padded_tensor(0.0))

    assert "without a formula" in flops.basis


def test_an_operator_without_a_formula_is_named() -> None:
    @torch.library.custom_op("autofuse_tests::opaque", mutates_args=())
    def opaque(x: Tensor) -> Tensor:
        return x @ x

    assert "autofuse_tests::opaque" in counted(opaque, torch.ones(4, 4)).basis
