"""A call without a fused forward is counted by the guard that failed, and logged once."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse.results.sites import Fallback
from tests.fx.conftest import Attention, Block, Gpt, optimized


class Stepping(nn.Module):
    def forward(self, q: Tensor, step: int) -> Tensor:
        return F.softmax(q @ q.mT * (step + 1), -1) @ q


def fallbacks(model: nn.Module) -> set[Fallback]:
    return set(autofuse.report(model).fallbacks)


def test_calls_that_are_fused_count_nothing() -> None:
    model, x = optimized(Block(), torch.randn(2, 8, 16)), torch.randn(2, 8, 16)
    model(x), model.eval()(x), model(torch.randn(1, 4, 16))
    assert not fallbacks(model)


def test_a_new_kind_of_call_is_counted_once_and_then_runs_its_own_forward(caplog: pytest.LogCaptureFixture) -> None:
    x, mask = torch.randn(2, 8, 16), torch.ones(1, 1, 8, 8)
    model = optimized(Attention(), x)
    with caplog.at_level(logging.INFO, "autofuse"):
        for _ in range(3):
            model(x, mask)
    assert fallbacks(model) == {Fallback("", "mask is None", 1, "captured anew")}
    assert [r.levelname for r in caplog.records if "mask is None" in r.message] == ["INFO"]


def test_a_hook_is_reported_with_the_child_that_has_it() -> None:
    x = torch.randn(2, 8, 16)
    model = optimized(Gpt(), torch.randint(0, 20, (2, 8)))
    model.blocks[1].mlp[0].register_forward_hook(lambda *_: None)
    model.blocks[1](x)
    (fallback,) = fallbacks(model)
    assert (fallback.module, fallback.guard) == ("blocks.1", "no hooks on self.mlp[0]")


def test_once_too_many_kinds_of_calls_were_seen_the_original_is_counted_and_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    q = torch.randn(2, 4, 4)
    model = optimized(Stepping(), q, 0)
    for step in range(30):
        torch.testing.assert_close(model(q, step), Stepping()(q, step))
    counted = {f.ran: f.calls for f in fallbacks(model) if f.guard.startswith("step == ")}
    assert sum(f.calls for f in fallbacks(model)) == 29
    assert counted["original"] > 0
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1 and "more than 8 ways" in warnings[0]


def test_a_call_that_cannot_be_captured_is_warned_of_by_its_guard(caplog: pytest.LogCaptureFixture) -> None:
    class Choosing(nn.Module):
        def forward(self, q: Tensor, mode: str = "plain") -> Tensor:
            if mode == "data" and q.sum() > 0:
                q = q * 2
            return F.softmax(q @ q.mT, -1) @ q

    q = torch.randn(2, 4, 4)
    model = optimized(Choosing(), q)
    torch.testing.assert_close(model(q, "data"), Choosing()(q, "data"))
    assert fallbacks(model) == {Fallback("", "mode == 'plain'", 1, "original")}
    assert "mode == 'plain'" in caplog.text


def test_modules_without_fused_sites_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor, scale: int = 1) -> Tensor:
            return x * scale

    model = optimized(Plain(), torch.randn(2, 3))
    for scale in range(20):
        model(torch.randn(2, 3), scale)
    assert not fallbacks(model)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_compilation_of_the_original_is_counted() -> None:
    torch._dynamo.reset()
    model, tokens = optimized(Gpt(), torch.randint(0, 20, (2, 8))), torch.randint(0, 20, (2, 8))
    for block in model.blocks:
        block.attn.heads = 4
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    plain = Gpt()
    plain.load_state_dict(model.state_dict())
    for block in plain.blocks:
        block.attn.heads = 4
    torch.testing.assert_close(compiled(tokens), plain(tokens))
    (fallback,) = fallbacks(model)
    assert fallback.module == "blocks.0.attn, blocks.1.attn"
    assert (fallback.guard, fallback.ran) == ("self.heads == 2", "original")


def test_the_report_of_a_part_of_the_model_covers_that_part_only() -> None:
    x, mask = torch.randn(2, 8, 16), torch.ones(1, 1, 8, 8)
    model = optimized(Gpt(), torch.randint(0, 20, (2, 8)))
    model.blocks[0].attn(x, mask)
    assert autofuse.report(model.blocks[0]).fallbacks and not autofuse.report(model.blocks[1]).fallbacks


def test_the_guard_of_the_nearest_variant_is_reported() -> None:
    x, mask = torch.randn(2, 8, 16), torch.ones(1, 1, 8, 8)
    model = optimized(Attention(), x).train()  # one forward for eval, one for train; the mask is what differs
    model(x, mask)
    assert {f.guard for f in fallbacks(model)} == {"mask is None"}
