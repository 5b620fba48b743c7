"""Whole profiles of small models on a CPU: what they report, and that nothing is changed."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autofuse
from autofuse.results.ladder import LEVELS
from autofuse.results.profile import OUTSIDE, Profile

BATCH, LENGTH, WIDTH = 4, 16, 32


class Block(nn.Module):
    """Attention by hand, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / WIDTH**0.5
        return x + self.out(scores.softmax(-1) @ v)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        self.seen += 1
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(x, self.tokens.weight)


def _ids() -> Tensor:
    return torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) % 50


# By hand: 2mnk for each product; backward twice that.
_PROJECTIONS = 2 * BATCH * LENGTH * WIDTH * 4 * WIDTH
_ATTENTION = 4 * BATCH * LENGTH * LENGTH * WIDTH
_HEAD = 2 * BATCH * LENGTH * WIDTH * 50
FLOPS = 3 * (2 * (_PROJECTIONS + _ATTENTION) + _HEAD)


@pytest.fixture(scope="module")
def profiled() -> tuple[Profile, Model]:
    torch.manual_seed(0)
    model = Model()
    return autofuse.profile(model, _ids(), steps=8, traced=2, progress=False), model


def test_every_level_is_there_in_order_with_a_number_or_a_reason(profiled: tuple[Profile, Model]) -> None:
    profile, _ = profiled
    assert [level.name for level in profile.ladder] == [kind.name for kind in LEVELS]
    assert all((level.value is None) == bool(level.reason) for level in profile.ladder)
    assert {r.name for r in profile.ladder if r.value is not None} >= {"busy", "hfu", "mfu", "ideal"}


def test_flops_are_those_of_the_formula_and_the_batch_is_read_from_the_inputs(profiled: tuple[Profile, Model]) -> None:
    profile, _ = profiled
    assert profile.flops.model == profile.flops.hardware == FLOPS
    assert (profile.timing.samples, profile.timing.tokens) == (BATCH, BATCH * LENGTH)
    assert len(profile.timing.seconds) == len(profile.timing.yardstick) == 8
    assert profile.timing.median in profile.timing.interval


def test_layers_include_the_modules_below_them_and_the_model_includes_all(profiled: tuple[Profile, Model]) -> None:
    profile, model = profiled
    assert {name for name, _ in model.named_modules()} - {"blocks"} <= {layer.fqn for layer in profile.layers}
    block = profile.layer("blocks.0")
    inside = [layer for layer in profile.layers if layer.fqn.startswith("blocks.0.")]
    assert block.kind == "Block"
    assert block.forward.flops == _PROJECTIONS + _ATTENTION
    assert block.own_forward.flops == _ATTENTION
    assert block.backward.flops == 2 * (_PROJECTIONS + _ATTENTION)
    assert block.seconds == pytest.approx(block.own_seconds + sum(layer.own_seconds for layer in inside))
    whole = profile.layer("").seconds + profile.layer(OUTSIDE).seconds
    assert whole <= profile.timing.median * 1.001
    assert profile.attribution.forward is not None and profile.attribution.forward > 0.95
    assert profile.attribution.backward is not None and profile.attribution.backward > 0.95


def test_parts_of_the_step_do_not_exceed_it(profiled: tuple[Profile, Model]) -> None:
    profile, _ = profiled
    parts = [s.seconds or 0 for s in profile.shares if s.name in ("forward", "backward", "optimizer", "data", "idle")]
    assert sum(parts) == pytest.approx(profile.timing.median, rel=0.02)


def test_it_survives_json(profiled: tuple[Profile, Model]) -> None:
    profile, _ = profiled
    again = Profile.from_dict(json.loads(profile.to_json()))
    assert again.to_dict() == profile.to_dict()


def test_nothing_of_the_model_is_changed() -> None:
    torch.manual_seed(0)
    model = Model().train()
    optimizer = torch.optim.AdamW(model.parameters())
    model(_ids()).square().mean().backward()
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]))
    state = torch.random.get_rng_state()

    def step() -> None:
        F.dropout(model(_ids())).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    autofuse.profile(step, steps=2, traced=1, warmup=1, progress=False)
    after = (model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()])
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())


def test_a_bare_step_is_profiled_with_the_model_and_optimizer_that_it_runs() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> Tensor:
        loss: Tensor = model(_ids()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    profile = autofuse.profile(train, steps=2, traced=1, progress=False)
    assert profile.name == "train"
    assert profile.layer("blocks.1.out").kind == "Linear"
    assert len(profile.losses) == 2 and profile.losses[1] < profile.losses[0]
    assert profile.timing.tokens == BATCH * LENGTH
    assert next(share for share in profile.shares if share.name == "optimizer").seconds
    assert profile.probe.ratio is None and "inputs" in profile.probe.reason


def test_an_optimized_model_is_seen_as_it_runs_and_counts_the_flops_of_the_original() -> None:
    torch.manual_seed(0)
    model = Model()
    autofuse.optimize(model, _ids(), tune=False)
    assert autofuse.report(model).with_status("fused")
    profile = autofuse.profile(model, _ids(), steps=2, traced=1, progress=False)
    assert autofuse.report(model).fallbacks == ()
    assert profile.flops.model == FLOPS
    assert "attention" in profile.categories


def test_the_recorded_steps_are_written_for_perfetto(tmp_path: Path) -> None:
    autofuse.profile(nn.Linear(4, 4), torch.ones(2, 4), steps=1, traced=1, trace=tmp_path / "t.json", progress=False)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert any(event.get("name") == "ProfilerStep#0" for event in events)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one timed"):
        autofuse.profile(nn.Linear(4, 4), torch.ones(2, 4), steps=0)
