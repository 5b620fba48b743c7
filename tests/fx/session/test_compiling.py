"""torch.compile compiles the blocks of a model in place if whole steps become faster, and restore undoes it."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.session import compiling
from autofuse.fx.session.compiling import blocks_of
from autofuse.measure.pair_count import JudgedTimings
from autofuse.measure.statistics import Judgement
from autofuse.measure.timing import Timings
from autofuse.results.comparison import Estimate, Interval, Verdict

COMPILED = "_compiled_call_impl"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.weight = nn.LayerNorm(32), nn.Parameter(torch.ones(32))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.softmax(x @ x.transpose(-2, -1) / 32**0.5, dim=-1)
        return self.norm(x + scores @ x * self.weight)


class Model(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def _x() -> Tensor:
    return torch.randn(2, 16, 32)


def _compiled(model: nn.Module) -> list[str]:
    return [name for name, m in model.named_modules() if m.__dict__.get(COMPILED) is not None]


def _names(model: nn.Module) -> list[str]:
    return [name for name, _ in blocks_of(model)]


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.ModuleList([Block(), Block()]) for _ in range(2))


TABLE: list[tuple[str, Callable[[], nn.Module], list[str]]] = [
    ("a list of equal blocks", Model, ["blocks.0", "blocks.1"]),
    ("one block is not repeated", lambda: Model(1), [""]),
    ("a sequential of equal blocks", lambda: nn.Sequential(Block(), Block()), ["0", "1"]),
    ("blocks of two classes", lambda: nn.ModuleList([Block(), nn.Linear(1, 1)]), [""]),
    ("layers of torch alone", lambda: nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)), [""]),
    ("the outermost that repeat", Nested, ["stages.0", "stages.1"]),
]


@pytest.mark.parametrize(("make", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_repeated_modules_are_blocks(make: Callable[[], nn.Module], expected: list[str]) -> None:
    assert _names(make()) == expected


def test_compile_true_compiles_every_block_and_restore_undoes_it() -> None:
    model = autofuse.optimize(Model(), _x(), tune=False, compile=True)
    assert _compiled(model) == ["blocks.0", "blocks.1"]
    assert type(model.blocks[0]) is Block and "blocks.0.weight" in model.state_dict()  # type: ignore[index]
    assert str(autofuse.report(model)).lstrip().startswith("compiled")
    pickle.loads(pickle.dumps(model))
    assert _compiled(copy.deepcopy(model)) == []
    autofuse.restore(model)
    assert _compiled(model) == [] and COMPILED not in vars(model.blocks[0])  # type: ignore[index]


def test_by_default_nothing_is_compiled() -> None:
    model = autofuse.optimize(Model(), _x(), tune=False)
    assert _compiled(model) == [] and autofuse.report(model).compiled is None


def test_an_unknown_value_of_compile_is_an_error_that_lists_the_values() -> None:
    with pytest.raises(ValueError, match='True, False or "auto"'):
        autofuse.optimize(Model(), _x(), compile="fastest")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Pass only one"):
        autofuse.optimize(Model(), _x(), compile=True, profile=True)


def test_modules_that_the_user_compiled_stay_compiled() -> None:
    model = Model()
    model.blocks[0].compile()
    made = model.blocks[0].__dict__[COMPILED]
    autofuse.optimize(model, _x(), tune=False, compile=True)
    choice = autofuse.report(model).compiled
    assert choice is not None and choice.chosen == "eager" and "Module.compile" in choice.reason
    autofuse.restore(model)
    assert model.blocks[0].__dict__[COMPILED] is made


def test_a_compiled_model_without_references_is_freed() -> None:
    model = autofuse.optimize(Model(), _x(), tune=False, compile=True)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_after_the_block_of_optimized_nothing_is_compiled() -> None:
    model, x = Model(), _x()
    with autofuse.optimized(model, x, tune=False, compile=True):
        assert _compiled(model)
    assert _compiled(model) == []


def _judged_timings(verdict: Verdict, ratio: float) -> JudgedTimings:
    effect = Estimate(ratio, Interval(ratio * 0.99, ratio * 1.01))
    return JudgedTimings(Timings((1.0,), (1.0,)), "wall", effect, effect, Judgement(verdict, ""), 1)


FASTER, SAME, SLOWER = (
    _judged_timings("confirmed", 1.2),
    _judged_timings("no-change", 1.0),
    _judged_timings("regressed", 0.8),
)
CHOICES = [
    ("neither gains", (SLOWER, SLOWER), "eager", "fused"),
    ("the compiled fused model gains", (FASTER, SAME), "compiled", "fused"),
    ("the compiled original gains", (SAME, FASTER), "compiled original", "declined"),
    ("both gain alike", (FASTER, FASTER, SAME), "compiled", "fused"),
    ("both gain, the original more", (FASTER, FASTER, FASTER), "compiled original", "declined"),
]


@pytest.fixture
def _uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The steps of copies run without compilation, and their timings are invented."""
    monkeypatch.setattr(
        nn.Module, "compile", lambda self: setattr(self, COMPILED, lambda *a, **k: self._call_impl(*a, **k))
    )
    yield


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize(("found", "chosen", "status"), [row[1:] for row in CHOICES], ids=[row[0] for row in CHOICES])
def test_the_fastest_beyond_noise_is_chosen(
    monkeypatch: pytest.MonkeyPatch, found: tuple[JudgedTimings, ...], chosen: str, status: str
) -> None:
    answers = iter(found)
    monkeypatch.setattr(compiling, "time_steps", lambda *_: next(answers))
    model, x = Model(), _x()
    expected = copy.deepcopy(model)(x)
    autofuse.optimize(model, x, tune=False, compile="auto")
    report = autofuse.report(model)
    assert report.compiled is not None and report.compiled.chosen == chosen
    assert bool(_compiled(model)) is (chosen != "eager")
    assert {s.status for s in report if s.rule} == {status}
    if status == "declined":
        assert {s.reason_code for s in report if s.rule} == {"compiled-is-faster"}
    torch.testing.assert_close(model(x), expected)
    assert report.to_dict()["compiled"]["chosen"] == chosen


def test_a_model_that_cannot_be_compiled_runs_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(self: nn.Module) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(nn.Module, "compile", raising)
    model = autofuse.optimize(Model(), _x(), tune=False, compile="auto")
    choice = autofuse.report(model).compiled
    assert choice is not None and (choice.chosen, choice.reason) == ("eager", "compiling it raised RuntimeError")


@pytest.mark.night
def test_a_chain_that_only_a_compiler_fuses_runs_compiled_and_computes_the_same() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.norm = nn.Parameter(torch.randn(256)), nn.LayerNorm(256)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.sin(x) * self.weight + torch.cos(x) * x - torch.exp(-x * x)
            return self.norm(y.sigmoid() * x + y.tanh())

    model, x = nn.Sequential(*(Chain() for _ in range(3))), torch.randn(16, 128, 256)
    expected = copy.deepcopy(model)(x)
    autofuse.optimize(model, x, tune=False, compile="auto")
    choice = autofuse.report(model).compiled
    assert choice is not None and choice.chosen in ("compiled", "compiled original")
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
