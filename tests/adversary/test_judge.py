"""The judge of the attack finds what is wrong: it is given an optimize that does wrong things to a model."""

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


class _Reports:
    """What the world asks of autofuse, with another optimize."""

    def __init__(self, optimize: Callable[[nn.Module, Any], None]) -> None:
        self._optimize = optimize

    def optimize(self, model: nn.Module, examples: Any, tune: bool) -> None:
        self._optimize(model, examples)

    def report(self, model: nn.Module) -> Any:
        return type("Report", (), {"summary": "", "sites": (), "with_status": lambda self, status: ()})()


def nothing(model: nn.Module, examples: Any) -> None:
    pass


def runs_it(model: nn.Module, examples: Any) -> None:
    model(torch.zeros(1, 4, 8, dtype=torch.float64))


def draws(model: nn.Module, examples: Any) -> None:
    torch.rand(1)


def forgets_the_log(model: nn.Module, examples: Any) -> None:
    _replace(model, lambda m, x, t: m.attend(x, t))


def forgets_the_change(model: nn.Module, examples: Any) -> None:
    _replace(model, lambda m, x, t: m.attend(x, 0.25), log=True)


def cuts_the_gradient(model: nn.Module, examples: Any) -> None:
    _replace(model, lambda m, x, t: m.attend(x.detach(), t), log=True)


def raises(model: nn.Module, examples: Any) -> None:
    raise KeyError("inside")


def _replace(model: nn.Module, attend: Callable[[Any, Tensor, float], Tensor], log: bool = False) -> None:
    forward = type(model).forward

    def other(x: Tensor) -> Tensor:
        if log:
            forward.__globals__["SEEN"].append(x.shape[0])
        return attend(model, x, forward.__globals__["T"])

    object.__setattr__(model, "forward", other)


@pytest.mark.parametrize(
    ("optimize", "words"),
    [
        (runs_it, "optimize itself changed[0].SEEN"),
        (draws, "optimize itself changed[4]"),
        (forgets_the_log, "then the module.SEEN"),
        (forgets_the_change, "result: differs by"),
        (cuts_the_gradient, "gradients"),
        (raises, "optimize raises KeyError"),
    ],
)
def test_what_optimize_does_wrong_is_found_and_told(
    optimize: Callable[[nn.Module, Any], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "autofuse", _Reports(optimize))
    for verdict in verdicts(PROGRAM):
        assert verdict.outcome == "wrong" and any(words in w for w in verdict.wrong), verdict.wrong


def test_an_optimize_that_does_nothing_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "autofuse", _Reports(nothing))
    assert [v.outcome for v in verdicts(PROGRAM)] == ["refused", "refused"]


def test_a_program_that_must_be_fused_is_wrong_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "autofuse", _Reports(nothing))
    program = Program("judge/must be fused", SOURCE, fused=True)
    assert all("it is not fused" in v.wrong[0] for v in verdicts(program))


def test_a_program_that_does_not_run_attacks_nothing() -> None:
    with pytest.raises(RuntimeError, match="in the original"):
        verdicts(Program("judge/broken", "class M(Base):\n    def forward(self, x):\n        return x + missing"))
