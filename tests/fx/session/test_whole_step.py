"""Whole steps are timed at the end. Sites that make a step slower are excluded."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse import ops
from autofuse.fx.session import model_steps, remembered_times, whole_step
from autofuse.fx.session.site_timing import SiteTimer, SiteTiming
from autofuse.kernels.policy import using
from autofuse.results.sites import SiteReport


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return torch.softmax(query @ key.transpose(-2, -1) / query.size(-1) ** 0.5, dim=-1) @ value


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(32)), nn.Parameter(torch.zeros(32))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


class Model(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.attention = nn.ModuleList(Attention() for _ in range(layers))
        self.norm = nn.ModuleList(Norm() for _ in range(layers))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        for attention, norm in zip(self.attention, self.norm, strict=True):
            x = norm(attention(x))
        return x


SEEN: list[int] = []


class Counts(Model):
    """Changes state outside the model."""

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(1)
        return super().forward(x)


@pytest.fixture(autouse=True)
def _measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Whole steps are timed and no timing is loaded. Single sites always count as faster."""
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(SiteTimer, "time_site", lambda *_: SiteTiming(words="1 ms, the original 2 ms"))
    monkeypatch.setattr(whole_step, "SHORTEST", 0.0)
    with using(measured=True):
        yield


def _slow(monkeypatch: pytest.MonkeyPatch, name: str, *, training: bool) -> None:
    """Make an operation ten milliseconds slower in one mode."""
    quick = getattr(ops, name)

    def slow(*args: object, **kwargs: object) -> Tensor:
        if torch.is_grad_enabled() is training:
            time.sleep(0.01)
        return quick(*args, **kwargs)  # type: ignore[no-any-return]

    monkeypatch.setattr(ops, name, slow)


def _never_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step counts as slower: with the load of other processes a step of equal speed can look slower."""
    monkeypatch.setattr(whole_step, "is_slower", lambda _: False)


def _sites(model: nn.Module, rule: str) -> list[SiteReport]:
    return [s for s in autofuse.report(model) if s.rule == rule]


def _x() -> Tensor:
    return torch.randn(4, 128, 32)


@pytest.mark.parametrize("training", [True, False])
def test_a_site_that_makes_a_step_slower_is_excluded_in_that_mode(
    monkeypatch: pytest.MonkeyPatch, training: bool
) -> None:
    _slow(monkeypatch, "attention", training=training)
    model, x = Model(), _x()
    expected = copy.deepcopy(model).train(training)(x)
    autofuse.optimize(model, x)
    mode = "training" if training else "inference"
    for site in _sites(model, "AF101"):
        assert site.status == "fused", site.reason
        assert f"{mode}: a whole" in site.reason and "is slower with it" in site.reason
    assert [s.status for s in _sites(model, "AF201")] == ["fused", "fused"]
    assert all("slower" not in s.reason for s in _sites(model, "AF201"))
    model.train(training)
    with torch.set_grad_enabled(training):
        began = time.perf_counter()
        result = model(x)
        assert time.perf_counter() - began < 0.5
    torch.testing.assert_close(result, expected)
    assert autofuse.report(model).fallbacks == (), "the original runs there, and nothing is asked"


def test_a_site_that_is_slower_in_both_modes_is_declined_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for training in (True, False):
        _slow(monkeypatch, "attention", training=training)
    model = Model()
    autofuse.optimize(model, _x())
    sites = _sites(model, "AF101")
    assert [s.status for s in sites] == ["declined", "declined"]
    assert {s.reason_code for s in sites} == {"slows-step"}
    assert "the original stays" in sites[0].reason


def test_the_report_begins_with_the_time_of_a_step() -> None:
    model = Model()
    autofuse.optimize(model.eval(), _x())
    report = autofuse.report(model)
    first, second = report.steps
    assert (first.mode, second.mode) == ("inference", "training"), "the mode that the model is in comes first"
    assert str(report).lstrip().startswith("inference ")
    assert report.to_dict()["steps"][0]["ratio"] == first.ratio


def test_nothing_is_timed_without_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_steps, "time_steps", None)  # timing anything fails
    model = Model()
    autofuse.optimize(model, _x(), tune=False)
    assert autofuse.report(model).steps == () and _sites(model, "AF101")[0].status == "fused"


def test_a_step_that_is_mostly_python_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_step, "SHORTEST", 10.0)
    model = Model()
    autofuse.optimize(model, _x())
    assert all(s.ratio is None and "Python" in s.not_timed for s in autofuse.report(model).steps)
    assert _sites(model, "AF101")[0].status == "fused"


def test_steps_have_no_side_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    _never_slower(monkeypatch)
    model, x = Counts(), _x()
    x.requires_grad_()
    SEEN.clear()
    torch.manual_seed(3)
    random.seed(3)
    before = copy.deepcopy(model.state_dict()), torch.get_rng_state(), random.getstate()
    autofuse.optimize(model, x)
    assert autofuse.report(model).steps[0].ratio is not None
    assert SEEN == []
    torch.testing.assert_close(model.state_dict(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1]) and random.getstate() == before[2]
    assert x.grad is None and all(p.grad is None for p in model.parameters()) and model.training


def test_if_a_step_raises_its_sites_stay_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*_: object, **__: object) -> None:
        raise RuntimeError("no step")

    monkeypatch.setattr(model_steps, "time_steps", raising)
    model = Model()
    autofuse.optimize(model, _x())
    assert _sites(model, "AF101")[0].status == "fused"
    assert autofuse.report(model).steps[0].not_timed == "it raised RuntimeError on a copy"


def test_a_step_that_an_earlier_process_timed_is_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _never_slower(monkeypatch)
    x = _x()
    autofuse.optimize(Model(), x)
    remembered_times.forget()  # as in another process
    monkeypatch.setattr(model_steps, "time_steps", None)  # timing anything fails
    model = autofuse.optimize(Model(), x)
    assert [s.remembered for s in autofuse.report(model).steps] == [True, True]


def test_sites_that_made_a_step_slower_in_an_earlier_process_are_excluded_without_timing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _slow(monkeypatch, "attention", training=True)
    x = _x()
    first = autofuse.optimize(Model(), x)
    remembered_times.forget()  # as in another process
    monkeypatch.setattr(model_steps, "time_steps", None)  # timing anything fails
    second = autofuse.optimize(Model(), x)
    assert [s.remembered for s in autofuse.report(second).steps] == [True, True]
    for model in (first, second):
        assert all("training: a whole training step is slower with it" in s.reason for s in _sites(model, "AF101"))
    assert [s.reason for s in _sites(first, "AF101")] == [s.reason for s in _sites(second, "AF101")]


def test_a_slower_site_that_is_not_found_again_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    _slow(monkeypatch, "attention", training=True)
    x = _x()
    with monkeypatch.context() as patch:
        patch.setattr(whole_step, "_place_of", lambda found: (found.rule, "another file", 1))
        autofuse.optimize(Model(1), x)
    model = autofuse.optimize(Model(1), x)
    assert "training: a whole training step is slower with it" in _sites(model, "AF101")[0].reason


@pytest.mark.parametrize("changed", ["layers", "shape", "mode of one module"])
def test_another_step_is_timed(changed: str) -> None:
    autofuse.optimize(Model(), _x())
    model = Model(3 if changed == "layers" else 2)
    model.norm[0].train(changed != "mode of one module")
    autofuse.optimize(model, _x()[:, :96] if changed == "shape" else _x())
    assert not any(s.remembered for s in autofuse.report(model).steps)


@pytest.mark.parametrize(("first_seconds", "estimated"), [(0.01, True), (1.0, False), (100.0, True)])
def test_a_step_that_is_surely_long_and_not_too_long_is_not_run_for_an_estimate(
    first_seconds: float, estimated: bool
) -> None:
    runs: list[None] = []
    steps = SimpleNamespace(
        first_seconds=first_seconds, device=torch.device("cpu"), step=lambda running: lambda: runs.append(None)
    )
    assert whole_step._out_of_range(cast(model_steps.ModelSteps, steps)) == ""
    assert bool(runs) is estimated


# A few of many equal layers are timed.


class Indexed(Model):
    """Needs all of its layers."""

    def forward(self, x: Tensor) -> Tensor:
        for i in range(12):
            x = self.norm[i](self.attention[i](x))
        return x


class Reversed(Model):
    """Runs its layers twice."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(super().forward(x))


@pytest.fixture
def _long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step counts as long."""
    monkeypatch.setattr(whole_step, "LONGEST", 0.0)


@pytest.mark.usefixtures("_long_steps")
def test_a_site_that_makes_a_few_layers_slower_is_excluded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    _slow(monkeypatch, "attention", training=True)
    model = Model(12)
    autofuse.optimize(model, _x())
    sites = _sites(model, "AF101")
    assert len(sites) == 12
    assert all("training: a whole training step is slower with it" in s.reason for s in sites)
    assert all("slower" not in s.reason for s in _sites(model, "AF201"))
    training = autofuse.report(model).steps[0]
    assert training.layers == "8 of 24 layers"
    assert "with 8 of 24 layers" in str(training)


@pytest.mark.usefixtures("_long_steps")
@pytest.mark.parametrize("kind", [Indexed, pytest.param(Reversed, marks=pytest.mark.night)])
def test_a_model_that_needs_its_layers_or_runs_them_twice_is_timed_as_a_whole(kind: type[Model]) -> None:
    steps = autofuse.report(autofuse.optimize(kind(12), _x())).steps
    assert [s.layers for s in steps] == ["", ""]
    assert all(s.pairs for s in steps)


@pytest.mark.usefixtures("_long_steps")
def test_the_layers_of_a_model_are_all_there_after_its_steps() -> None:
    model, x = Model(12).eval(), _x()
    before, expected = list(model.modules()), copy.deepcopy(model)(x)
    autofuse.optimize(model, x)
    assert list(model.modules()) == before
    torch.testing.assert_close(model(x), expected)
