"""The judge of adversarial programs finds each mistake of an `optimize` that changes models wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.adversary import world
from tests.adversary.judge import verdicts
from tests.adversary.program import Program

SOURCE = """
SEEN = []
T = 0.25
class M(Base):
    def forward(self, x):
        SEEN.append(x.shape[0])
        return self.attend(x, T)
def change(m):
    globals()["T"] = 3.0
"""
PROGRAM = Program("judge/a log and a global", SOURCE)


class OtherAutofuse:
    """Replaces `autofuse` in tests/adversary/world.py, with another `optimize`."""

    def __init__(self, optimize: Callable[[nn.Module, Any], None]) -> None:
        self._optimize = optimize

    def optimize(self, model: nn.Module, examples: Any, tune: bool) -> None:
        self._optimize(model, examples)

    def report(self, model: nn.Module) -> Any:
        return type("Report", (), {"summary": "", "sites": (), "with_status": lambda self, status: ()})()


def do_nothing(model: nn.Module, examples: Any) -> None:
    pass


def run_the_model(model: nn.Module, examples: Any) -> None:
    model(torch.zeros(1, 4, 8, dtype=torch.float64))


def draw_a_number(model: nn.Module, examples: Any) -> None:
    torch.rand(1)


def forget_the_log(model: nn.Module, examples: Any) -> None:
    _replace(model, lambda m, x, t: m.attend(x, t))


def forget_the_change(model: nn.Module, examples: Any) -> None:
    _replace(model, lambda m, x, t: m.attend(x, 0.25), log=True)


def cut_the_gradient(model: nn.Module, examples: Any) -> None:
    _replace(model, lambda m, x, t: m.attend(x.detach(), t), log=True)


def raise_an_error(model: nn.Module, examples: Any) -> None:
    raise KeyError("inside")


def _replace(model: nn.Module, attend: Callable[[Any, Tensor, float], Tensor], log: bool = False) -> None:
    forward = type(model).forward

    def replacement(x: Tensor) -> Tensor:
        if log:
            forward.__globals__["SEEN"].append(x.shape[0])
        return attend(model, x, forward.__globals__["T"])

    object.__setattr__(model, "forward", replacement)


@pytest.mark.parametrize(
    ("optimize", "words"),
    [
        (run_the_model, "optimize itself changed[0].SEEN"),
        (draw_a_number, "optimize itself changed[4]"),
        (forget_the_log, "then the module.SEEN"),
        (forget_the_change, "result: differs by"),
        (cut_the_gradient, "gradients"),
        (raise_an_error, "optimize raises KeyError"),
    ],
)
def test_a_mistake_of_optimize_is_found_and_described(
    optimize: Callable[[nn.Module, Any], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "autofuse", OtherAutofuse(optimize))
    for verdict in verdicts(PROGRAM):
        assert verdict.outcome == "wrong" and any(words in w for w in verdict.wrong), verdict.wrong


def test_an_optimize_that_does_nothing_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "autofuse", OtherAutofuse(do_nothing))
    assert [v.outcome for v in verdicts(PROGRAM)] == ["refused", "refused"]


def test_a_program_that_must_be_fused_is_wrong_if_it_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "autofuse", OtherAutofuse(do_nothing))
    program = Program("judge/must be fused", SOURCE, fused=True)
    assert all("it is not fused" in v.wrong[0] for v in verdicts(program))


def test_a_program_that_does_not_run_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="in the original"):
        verdicts(Program("judge/broken", "class M(Base):\n    def forward(self, x):\n        return x + missing"))
