"""FLOPs of whole models against closed formulas, which are derived here on their own: a product of (m, k) by (k, n) is
2mnk, each weight of a linear layer is met by each token once forward and twice backward, and each of a layer's two
products of attention is as wide as the model: 6N + 12 L d T a token.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autofuse
from autofuse.demo.gpt import GPT, Config, configure_optimizer, train_step
from autofuse.profiling.calls import Names
from autofuse.profiling.counting import Counting, model_flops_of_original
from autofuse.report.profile import Flops

CONFIG = Config(vocab_size=48, block_size=64, n_layer=2, n_head=4, n_embd=32)
BATCH, LENGTH = 3, 64
TOKENS = BATCH * LENGTH


def counted(model: nn.Module, run: Any) -> Flops:
    with Counting(Names({"": model})) as counting:
        run()
    return counting.flops


def of_gpt(config: Config) -> int:
    weights = config.n_layer * 12 * config.n_embd**2 + config.n_embd * config.vocab_size
    return TOKENS * (6 * weights + 12 * config.n_layer * config.n_embd * LENGTH)


@pytest.fixture
def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, CONFIG.vocab_size, (BATCH, LENGTH))


def test_a_hand_written_gpt_takes_6n_and_12ldt_a_token(gpt: GPT, ids: Tensor) -> None:
    optimizer = configure_optimizer(gpt)

    flops = counted(gpt, lambda: train_step(gpt, optimizer, ids, ids))

    assert flops.model == flops.hardware == of_gpt(CONFIG)
    assert flops.dtype == "float32"


def test_after_optimize_the_model_asks_for_the_same(gpt: GPT, ids: Tensor) -> None:
    after = autofuse.optimize(gpt, example_inputs=(ids,))
    optimizer = configure_optimizer(after)

    flops = counted(after, lambda: train_step(after, optimizer, ids, ids))

    assert flops.model == of_gpt(CONFIG)
    assert model_flops_of_original(after, (ids,)).model == of_gpt(CONFIG)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, use_reentrant: bool) -> None:
        super().__init__()
        self.inner, self.use_reentrant = inner, use_reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_adds_to_what_is_executed_only(gpt: GPT, ids: Tensor, use_reentrant: bool) -> None:
    after = deepcopy(gpt)
    after.h = nn.ModuleList([Checkpointed(block, use_reentrant) for block in after.h])
    optimizer = configure_optimizer(after)

    flops = counted(after, lambda: train_step(after, optimizer, ids, ids))

    forward_of_blocks = TOKENS * CONFIG.n_layer * (2 * 12 * CONFIG.n_embd**2 + 4 * CONFIG.n_embd * LENGTH)
    # Checkpointing without reentry stops before each block's last product, whose result no backward asks for.
    last = 0 if use_reentrant else TOKENS * CONFIG.n_layer * 2 * 4 * CONFIG.n_embd**2
    assert flops.model == of_gpt(CONFIG)
    assert flops.hardware == of_gpt(CONFIG) + forward_of_blocks - last
