"""Sites that are not faster keep their original code, and the report has the times of both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse import ops
from autofuse.fx.session import site_timing, whole_step
from autofuse.kernels.policy import using

SIZE = (2, 4, 256, 32)


class Attention(nn.Module):
    """Hand-written attention with scores of more than a megabyte, so the fused kernel is several times faster."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = (query @ key.transpose(-2, -1)) / query.size(-1) ** 0.5
        return torch.softmax(scores, dim=-1) @ value


class Feed(nn.Module):
    """Linear, GELU, linear: the fused operation calls the same functions."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


@pytest.fixture(autouse=True)
def _measuring() -> Iterator[None]:
    with using(measured=True):
        yield


def _inputs() -> tuple[Tensor, ...]:
    return tuple(torch.randn(SIZE, requires_grad=True) for _ in range(3))


def _only(model: nn.Module, rule: str) -> autofuse.SiteReport:  # type: ignore[name-defined]
    (site,) = [s for s in autofuse.report(model) if s.rule == rule]
    return site


def test_attention_is_faster_and_the_report_has_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_step, "is_slower", lambda _: False)  # whole steps have tests of their own
    model = Attention()
    autofuse.optimize(model, _inputs())
    site = _only(model, "AF101")
    assert site.status == "fused"
    assert "the original" in site.reason and "ms" in site.reason


def test_a_slower_site_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = ops.attention

    def slow(*args: object, **kwargs: object) -> Tensor:
        time.sleep(0.3)
        return quick(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(ops, "attention", slow)
    model, inputs = Attention(), _inputs()
    expected = model(*inputs)
    autofuse.optimize(model, inputs)
    site = _only(model, "AF101")
    assert site.status == "declined"
    assert "the original stays" in site.reason and site.reason_code == "not-faster"
    assert site.advice == "nothing to do: the original is faster; tune=False fuses without measurement"
    assert torch.equal(model(*inputs), expected)


def test_without_tuning_the_default_kernel_runs_unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_timing, "race_steps", None)  # a timing would fail
    model = Attention()
    autofuse.optimize(model, _inputs(), tune=False)
    assert _only(model, "AF101").status == "fused"


def test_a_short_site_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_timing, "race_steps", None)
    monkeypatch.setitem(site_timing.SHORTEST, "cpu", 60.0)  # short on a loaded machine too
    model = Attention()
    autofuse.optimize(model, tuple(torch.randn(1, 1, 4, 8) for _ in range(3)))
    site = _only(model, "AF101")
    assert site.status == "fused" and not site.reason


def test_a_short_site_is_excluded_if_it_is_far_slower_fused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(site_timing.SHORTEST, "cpu", 60.0)  # short on a loaded machine too
    quick = ops.attention

    def slow(*args: object, **kwargs: object) -> Tensor:
        time.sleep(0.001)
        return quick(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(ops, "attention", slow)
    model, inputs = Attention(), tuple(torch.randn(1, 1, 4, 8) for _ in range(3))
    expected = model(*inputs)
    autofuse.optimize(model, inputs)
    site = _only(model, "AF101")
    assert site.status == "declined" and site.reason_code == "not-faster"
    assert "the original stays" in site.reason and " a call, fused " in site.reason
    assert torch.equal(model(*inputs), expected)


def test_equal_sites_are_timed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path))  # a cache without timings of other tests
    timed = []
    known = site_timing._time_excerpt

    def counted(excerpt: object, *rest: object) -> site_timing.SiteTiming:
        timed.append(excerpt)
        return known(excerpt, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(site_timing, "_time_excerpt", counted)

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Attention() for _ in range(3))

        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            for layer in self.layers:
                query = layer(query, key, value)
            return query

    model = Stack()
    autofuse.optimize(model, _inputs())
    assert len(autofuse.report(model).with_status("fused")) == 3
    assert len(timed) == 2  # in training and in inference


@pytest.mark.night
def test_timing_leaves_the_model_unchanged() -> None:
    model = Feed().train()
    x = torch.randn(512, 128)
    state = {name: t.clone() for name, t in model.state_dict().items()}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    autofuse.optimize(model, (x,))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters()) and model.training


def test_tune_is_part_of_the_options() -> None:
    model, inputs = Attention(), _inputs()
    autofuse.optimize(model, inputs, tune=False)
    first = autofuse.report(model)
    autofuse.optimize(model, inputs, tune=True)
    assert autofuse.report(model) is not first
    with pytest.raises(ValueError, match="policy"):
        autofuse.optimize(model, inputs, policy="luck")


def test_sites_are_timed_without_verification() -> None:
    model = Attention()
    autofuse.optimize(model, _inputs(), verify=False)
    site = _only(model, "AF101")
    assert site.status == "fused" and "the original" in site.reason
