"""Real tuning of small operations with clear winners: winners, refusals, and state that must stay unchanged."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autofuse.kernels import decisions, tuning
from autofuse.kernels import operation as operation_module
from autofuse.kernels.operation import OPERATIONS, Operation
from autofuse.kernels.packages import TORCH, Package
from autofuse.kernels.policy import using
from autofuse.kernels.provider import Provider
from autofuse.kernels.tuning import tune
from autofuse.results.tuning import TuningResult

SLOW = 0.004  # seconds that a slow candidate sleeps: far beyond what the machine's noise can hide


def _plain(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x) * w


def _slowly(x: Tensor, w: Tensor) -> Tensor:
    time.sleep(SLOW)
    return _plain(x, w)


def _wrong(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x) * w * 1.001


def _raise_error(x: Tensor, w: Tensor) -> Tensor:
    raise RuntimeError("no kernel image is available\nand a long trace")


def _hungry(x: Tensor, w: Tensor) -> Tensor:
    pieces = [x.clone() for _ in range(8)]
    return torch.tanh(pieces[0]) * w


def _provider(name: str, run: Callable[..., Tensor], package: Package = TORCH, **more: object) -> Provider:
    return Provider("scaled", name, package, run, "Tanh, scaled.", "Torch's.", **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An own cache and operations, and no least time: these tiny calls have clear winners."""
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(operation_module, "OPERATIONS", dict(OPERATIONS))
    monkeypatch.setattr(tuning, "SHORTEST", {"cpu": 0.0})
    decisions.forget()
    with using(measured=True):
        yield
    decisions.forget()


def scaling_operation(*providers: Provider, torch_code: Callable[..., Tensor] = _slowly) -> Operation:
    return Operation("scaled", (*providers, _provider("torch", torch_code, default=True)), least=0)


def arguments(requires_grad: bool = True) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    x, w = (torch.randn(size, generator=draws, requires_grad=requires_grad) for size in ((64, 32), (32,)))
    return x, w


def tune_quickly(operation: Operation, **more: object) -> TuningResult:
    return tune(operation, arguments(), seconds=0.01, **more)  # type: ignore[arg-type]


def test_the_faster_candidate_wins_and_calls_go_to_it() -> None:
    operation = scaling_operation(_provider("quick", _plain))
    result = tune_quickly(operation)
    assert result.measured
    assert result.winner == "quick"
    assert result.ranking == ("quick", "torch")
    assert result.why.startswith("It is the fastest")
    quick, slow = result.trial("quick"), result.trial("torch")
    assert quick.seconds is not None and slow.seconds is not None and quick.seconds < SLOW < slow.seconds
    assert quick.interval is not None and quick.seconds in quick.interval
    assert quick.peak_bytes and quick.held_bytes
    operation(*arguments())
    assert operation.counts == {"quick": 1}


def test_a_slower_candidate_loses_even_if_it_is_the_default() -> None:
    operation = scaling_operation(_provider("own", _slowly, default=True), torch_code=_plain)
    assert tune_quickly(operation).winner == "torch"
    operation(*arguments())
    assert operation.counts == {"torch": 1}


def test_excluded_candidates_have_a_reason() -> None:
    result = tune_quickly(
        scaling_operation(
            _provider("wrong", _wrong),
            _provider("raises", _raise_error),
            _provider("absent", _plain, Package("absent", lambda: "It is not installed.", "")),
            _provider("refuses", _plain, check=lambda x, w: "It wants even rows."),
            _provider("broken check", _plain, check=lambda x: ""),
        )
    )
    assert result.winner == "torch"
    assert "It computes something else: the result is off by" in result.trial("wrong").refused
    assert result.trial("raises").refused == "It raised RuntimeError: no kernel image is available"
    assert result.trial("absent").refused == "It is not installed."
    assert result.trial("refuses").refused == "It wants even rows."
    assert result.trial("broken check").refused.startswith("Its check raised TypeError")
    assert all(result.trial(t.name).seconds is None for t in result.trials if t.refused)


def test_the_original_stays_unless_a_candidate_is_better() -> None:
    operation = scaling_operation(torch_code=_plain)
    assert tune_quickly(operation, extra_candidates={"original": _slowly}).winner == "torch"
    beaten = tune_quickly(scaling_operation(torch_code=_slowly), extra_candidates={"original": _plain})
    assert beaten.winner == "original"
    assert beaten.trial("original").seconds is not None


def test_an_inexact_original_is_measured_with_its_error() -> None:
    result = tune_quickly(scaling_operation(), extra_candidates={"original": _wrong})
    original = result.trial("original")
    assert original.refused == "" and original.inexactness > 1
    assert result.winner == "original"


def test_a_sites_decision_is_separate_from_the_operations() -> None:
    operation = scaling_operation(_provider("quick", _plain))
    at_site = tune_quickly(operation, extra_candidates={"original": _plain}, site="3f2a")
    assert "original" in at_site.ranking
    assert tune_quickly(operation, extra_candidates={"original": _plain}, site="3f2a") == at_site
    anywhere = tune_quickly(operation)
    assert anywhere.measured and "original" not in anywhere.ranking
    assert anywhere.trial("quick") == at_site.trial("quick")


def test_a_decision_is_stored_and_measured_again_on_request() -> None:
    operation = scaling_operation(_provider("quick", _plain))
    first = tune_quickly(operation)
    decisions.forget()
    assert tune_quickly(operation) == first
    assert tune_quickly(operation, again=True) != first


def test_other_versions_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    operation = scaling_operation(_provider("quick", _plain))
    first = tune_quickly(operation)
    monkeypatch.setattr(decisions, "versions", lambda: {"torch": "another"})
    decisions.forget()
    assert tune_quickly(operation) != first


def test_memory_can_be_preferred() -> None:
    operation = scaling_operation(_provider("hungry", _hungry))
    with using(policy="memory"):
        assert tune_quickly(operation).winner == "torch"
    assert tune_quickly(operation).winner == "hungry"


def test_deterministic_mode_excludes_candidates_that_vary() -> None:
    drawn = iter(range(1000))  # the last bit is on and off

    def varying(x: Tensor, w: Tensor) -> Tensor:
        return _plain(x, w) * (1 + next(drawn) % 2 * 2**-23)

    operation = scaling_operation(_provider("declared", _plain, deterministic=False), _provider("found out", varying))
    with using(deterministic=True):
        result = tune_quickly(operation)
    assert result.winner == "torch" and result.deterministic
    assert "not deterministic" in result.trial("declared").refused
    assert "different bits" in result.trial("found out").refused
    assert tune_quickly(operation).winner != "torch"


def test_excluded_providers_are_neither_measured_nor_stored() -> None:
    operation = scaling_operation(_provider("quick", _plain))
    with using(providers=("torch",)):
        restricted = tune_quickly(operation)
    assert restricted.winner == "torch" and not restricted.measured
    assert tune_quickly(operation).winner == "quick"


def test_without_measuring_the_default_holds() -> None:
    operation = scaling_operation(_provider("quick", _plain))
    assert tune_quickly(operation).winner == "quick"
    with using(measured=False):
        operation(*arguments())
    assert "quick" not in operation.counts
    operation(*arguments())
    assert operation.counts["quick"] == 1


def test_a_call_that_is_too_short_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SHORTEST", {"cpu": 10.0})
    result = tune_quickly(scaling_operation(_provider("quick", _plain)))
    assert not result.measured
    assert result.winner == "torch"
    assert "too short to compare" in result.why


def test_plain_torch_code_computes_small_calls() -> None:
    operation = Operation("scaled", (_provider("quick", _plain), _provider("torch", _slowly)), least=10**6)
    result = tune_quickly(operation)
    assert result.winner == "torch" and not result.measured
    assert "Below 1000000 elements" in result.trial("quick").refused


def test_inference_is_timed_and_decided_separately() -> None:
    operation = scaling_operation(_provider("quick", _plain))
    result = tune(operation, arguments(requires_grad=False), seconds=0.01)
    assert not result.training and result.trial("quick").held_bytes == 0
    assert tune_quickly(operation).training
    with torch.inference_mode():
        assert not tune(operation, arguments(requires_grad=False), seconds=0.01, again=True).training


def test_identical_candidates_are_reported_as_equal() -> None:
    result = tune_quickly(scaling_operation(_provider("same", _plain), torch_code=_plain), again=True)
    if result.measured:  # else the machine was too busy to tell, which is said too
        assert result.control is not None
        assert result.winner in ("torch", "same")
    else:
        assert "Too noisy" in result.why


def test_the_users_state_stays_unchanged() -> None:
    x, w = arguments()
    x.grad = torch.ones_like(x)
    values, gradient = x.detach().clone(), x.grad
    torch.manual_seed(3)
    random.seed(3)
    states = torch.get_rng_state(), random.getstate()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        tune(scaling_operation(_provider("quick", _plain)), (x, w), training=True, seconds=0.01)
        assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert x.grad is gradient and torch.equal(gradient, torch.ones_like(x)) and w.grad is None
    assert torch.equal(x, values) and x._version == 0
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_unwritable_cache_still_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path / "file"))
    decisions.forget()
    operation = scaling_operation(_provider("quick", _plain))
    with caplog.at_level(logging.WARNING, "autofuse"):
        assert tune_quickly(operation).winner == "quick"
    operation(*arguments())
    assert operation.counts == {"quick": 1}
    assert sum("cannot write to" in r.message for r in caplog.records) <= 1


def test_a_call_that_cannot_be_tuned_is_an_error_that_says_why() -> None:
    with pytest.raises(ValueError, match="There is no operation 'rms'"):
        tune("rms", arguments())
    with pytest.raises(ValueError, match="must be a tensor"):
        tune(scaling_operation(), (3,))
