"""autofuse looks inside the modules that torch puts around a user's module, and reports use the user's names."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import autofuse
from autofuse.fx.trace.wrappers import unwrap, user_name, wrapped_name
from tests.fx.conftest import Gpt, assert_same


def test_the_wrapped_module_is_found_and_a_users_child_called_module_is_not_a_wrapper() -> None:
    block = nn.Linear(2, 2)
    assert unwrap(checkpoint_wrapper(checkpoint_wrapper(block))) is block

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = block

    own = Own()
    assert unwrap(own) is own and wrapped_name(own) == ""
    assert user_name(own, "module.weight".rpartition(".")[0]) == "module"


def test_reports_use_the_users_names_without_wrappers(tokens: Tensor) -> None:
    plain = Gpt()
    model = copy.deepcopy(plain)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = checkpoint_wrapper(block)
    autofuse.optimize(model, tokens)
    assert {s.module for s in autofuse.report(model) if s.rule == "AF101"} == {"blocks.0.attn", "blocks.1.attn"}
    assert_same(plain, model, tokens)


def test_the_modules_filter_uses_the_users_names(tokens: Tensor) -> None:
    model = Gpt()
    model.blocks[0] = checkpoint_wrapper(model.blocks[0])
    autofuse.optimize(model, tokens, modules="blocks.0.attn")
    assert {s.module for s in autofuse.report(model).with_status("fused")} == {"blocks.0.attn"}


def test_a_compiled_block_is_fused_in_a_model(tokens: Tensor) -> None:
    plain = Gpt()
    model = copy.deepcopy(plain)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, backend="eager")  # type: ignore[assignment]
    autofuse.optimize(model, tokens)
    assert {s.module for s in autofuse.report(model) if s.rule == "AF101"} == {"blocks.0.attn", "blocks.1.attn"}
    assert_same(plain, model, tokens)
