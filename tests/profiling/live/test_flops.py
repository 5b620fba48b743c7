"""FLOPs of whole models against closed formulas.

A product of (m, k) by (k, n) takes 2mnk FLOPs. Each token meets each weight of its layers once forward and twice
backward, which is 6 FLOPs for each weight. Each of attention's two products over T keys takes 2dT for each token and
layer forward, and twice that backward: 12 L d T. So a token takes 6N + 12 L d T. N is the number of weights by which
tokens are multiplied: a head that is tied to the embedding counts, but the embedding itself, biases and norms do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

from autofuse.demo.gpt import GPT, Config, configure_optimizer, train_step
from autofuse.measure.step import Step, training_step
from autofuse.profiling.live.counting import Counting
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.results.profile import Flops

LAYERS, HEADS, WIDTH, HIDDEN, VOCABULARY = 2, 4, 32, 48, 40
BATCH, LENGTH = 3, 16
TOKENS = BATCH * LENGTH
ATTENTION = 12 * LAYERS * WIDTH * LENGTH
CONFIG = Config(vocab_size=VOCABULARY, block_size=LENGTH, n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH)
GPT_WEIGHTS = LAYERS * 12 * WIDTH**2 + WIDTH * VOCABULARY
OF_GPT = TOKENS * (6 * GPT_WEIGHTS + ATTENTION)


def counted(model: nn.Module, run: Callable[[], object]) -> Flops:
    with Counting(ModuleNames({"": model})) as counting:
        run()
    return counting.flops


def of_step(model: nn.Module, inputs: Any, step: Step = training_step) -> Flops:
    return counted(model, lambda: step(model, inputs))


def loss_of(model: nn.Module, inputs: Any) -> Tensor:
    """A loss that is computed from the logits only."""
    return F.mse_loss(logits := model(**inputs).logits, torch.zeros_like(logits))


def of_logits(model: nn.Module, inputs: Any) -> None:
    loss_of(model, inputs).backward()


@pytest.fixture
def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, LENGTH))


def gpt2(**options: Any) -> nn.Module:
    config = GPT2Config(
        n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=VOCABULARY, n_positions=LENGTH, attn_pdrop=0.0,
        resid_pdrop=0.0, embd_pdrop=0.0, **options,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def bert(**options: Any) -> nn.Module:
    config = BertConfig(
        hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        vocab_size=VOCABULARY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options,
    )  # fmt: skip
    return BertForMaskedLM(config)


def llama(**options: Any) -> nn.Module:
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=LENGTH, **options,
    )  # fmt: skip
    return LlamaForCausalLM(config)


LIBRARY = {
    gpt2: GPT_WEIGHTS,
    # Its head is a layer as wide as the model, and the embedding transposed.
    bert: LAYERS * (4 * WIDTH**2 + 2 * WIDTH * HIDDEN) + WIDTH**2 + WIDTH * VOCABULARY,
    # Keys and values have half as many heads as queries; SwiGLU has three projections.
    llama: LAYERS * (3 * WIDTH**2 + 3 * WIDTH * HIDDEN) + WIDTH * VOCABULARY,
}


def test_a_hand_written_gpt_takes_6n_and_12ldt_a_token(gpt: GPT, ids: Tensor) -> None:
    optimizer = configure_optimizer(gpt)

    flops = counted(gpt, lambda: train_step(gpt, optimizer, ids, ids))

    assert flops.model == flops.hardware == OF_GPT
    assert flops.dtype == "float32"


@pytest.mark.parametrize("make", LIBRARY, ids=lambda make: make.__name__)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_librarys_models_take_the_same_whichever_attention(make: Any, attention: str, ids: Tensor) -> None:
    flops = of_step(make(attn_implementation=attention), {"input_ids": ids}, of_logits)

    scores_again = TOKENS * 2 * LAYERS * WIDTH * LENGTH if attention == "sdpa" else 0
    assert flops.model == TOKENS * (6 * LIBRARY[make] + ATTENTION)
    assert flops.hardware == flops.model + scores_again


def test_a_forward_alone_takes_a_third(gpt: GPT, ids: Tensor) -> None:
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert counted(gpt, lambda: gpt(ids)).model == OF_GPT // 3


# Images.

PATCH, SIZE, CLASSES = 4, 16, 10
PATCHES = (SIZE // PATCH) ** 2
# Pixels ask for no gradient, so the projection of patches has one product backward, and not two.
OF_VIT = BATCH * (
    4 * PATCHES * 3 * PATCH**2 * WIDTH
    + (PATCHES + 1) * (6 * LAYERS * (4 * WIDTH**2 + 2 * WIDTH * HIDDEN) + 12 * LAYERS * WIDTH * (PATCHES + 1))
    + 6 * WIDTH * CLASSES
)


def test_a_vit_embeds_patches_without_a_gradient_for_pixels() -> None:
    config = ViTConfig(
        hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        image_size=SIZE, patch_size=PATCH, num_labels=CLASSES, hidden_dropout_prob=0.0,
    )  # fmt: skip
    inputs = {"pixel_values": torch.randn(BATCH, 3, SIZE, SIZE)}

    assert of_step(ViTForImageClassification(config), inputs, of_logits).model == OF_VIT


def test_a_gradient_of_pixels_counts_only_if_it_is_requested() -> None:
    embed = nn.Conv2d(3, WIDTH, PATCH, PATCH)
    product = 2 * BATCH * PATCHES * 3 * PATCH**2 * WIDTH
    pixels = torch.randn(BATCH, 3, SIZE, SIZE)

    assert of_step(embed, pixels).model == 2 * product
    assert of_step(embed, pixels.requires_grad_()).model == 3 * product


# Gradients that are not requested.


def test_frozen_weights_cost_no_gradient_of_their_own(gpt: GPT, ids: Tensor) -> None:
    frozen = gpt.h[0].mlp.c_fc.requires_grad_(False)

    assert of_step(gpt, (ids,)).model == OF_GPT - 2 * TOKENS * frozen.weight.numel()


def test_below_the_lowest_trained_layer_there_is_no_backward(gpt: GPT, ids: Tensor) -> None:
    gpt.requires_grad_(False)
    gpt.h[1].mlp.c_proj.requires_grad_(True)
    head, trained = WIDTH * VOCABULARY, 4 * WIDTH**2

    backward = TOKENS * 2 * (head + trained)

    assert of_step(gpt, (ids,)).model == OF_GPT // 3 + backward


@pytest.mark.parametrize("fused", [False, True])
def test_attention_computes_the_gradients_that_are_wanted_whatever_its_kernel_does(fused: bool) -> None:
    query, key, value = (torch.randn(2, HEADS, LENGTH, 8) for _ in range(3))
    value.requires_grad_()

    def attend() -> None:
        if fused:
            made = F.scaled_dot_product_attention(query, key, value)
        else:
            made = torch.softmax(query @ key.mT, -1) @ value
        made.sum().backward()

    product = 2 * 2 * HEADS * LENGTH**2 * 8
    assert counted(nn.Identity(), attend).model == 3 * product
    query.requires_grad_()
    assert counted(nn.Identity(), attend).model == 5 * product


# What is computed again.


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_adds_to_what_is_executed_only(gpt: GPT, ids: Tensor, use_reentrant: bool) -> None:
    gpt.h = nn.ModuleList([Checkpointed(block, use_reentrant) for block in gpt.h])

    flops = of_step(gpt, (ids,))

    forward_of_blocks = TOKENS * (2 * LAYERS * 12 * WIDTH**2 + ATTENTION // 3)
    # Without reentry it stops before each block's last product, whose result no backward asks for.
    last = 0 if use_reentrant else TOKENS * LAYERS * 2 * 4 * WIDTH**2
    assert flops.model == OF_GPT
    assert flops.hardware == OF_GPT + forward_of_blocks - last


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, use_reentrant: bool) -> None:
        super().__init__()
        self.inner, self.use_reentrant = inner, use_reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("keep", [False, True])
def test_a_checkpointed_function_is_recomputed_and_a_kept_graph_does_not_hide_it(keep: bool) -> None:
    weight = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(4, 8, requires_grad=True)

    def run() -> None:
        made: Any = checkpoint(lambda x: (x @ weight).tanh() @ weight, x, use_reentrant=True)
        made.sum().backward(retain_graph=keep)

    product = 2 * 4 * 8 * 8
    flops = counted(nn.Identity(), run)
    assert (flops.model, flops.hardware) == (6 * product, 8 * product)


def test_a_graph_of_the_gradient_is_not_a_recomputation() -> None:
    layer, x = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)

    def run() -> None:
        (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()

    flops = counted(layer, run)
    assert flops.model == flops.hardware
    assert flops.model is not None
    assert flops.model > 2 * 2 * 4 * 8 * 8


def test_compiled_code_counts_like_its_python_source(gpt: GPT, ids: Tensor) -> None:
    compiled: Any = torch.compile(gpt, backend="eager")

    before = of_step(compiled, (ids,)).model
    compiled(ids)

    assert before == of_step(compiled, (ids,)).model == OF_GPT


class Orthogonal(torch.optim.Optimizer):
    """Multiplies matrices, as optimizers do that orthogonalize gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad @ parameter.grad


def test_an_optimizers_products_are_not_the_models_and_its_closures_are() -> None:
    layer, x = nn.Linear(8, 8, bias=False), torch.randn(4, 8)
    optimizer = Orthogonal(layer.parameters(), {})

    flops = counted(layer, lambda: optimizer.step(lambda: layer(x).sum().backward()))

    assert flops.model == 2 * 2 * 4 * 8 * 8
    assert flops.hardware == flops.model + 2 * 8**3


def test_a_forward_without_gradients_counts_in_model_flops() -> None:
    weight = torch.randn(8, 8)

    with torch.no_grad():
        assert counted(nn.Identity(), lambda: torch.ones(4, 8) @ weight).model == 2 * 4 * 8 * 8
