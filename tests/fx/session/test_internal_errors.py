"""If autofuse itself fails, the original runs, and the report says so in one line."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.install.dispatch import is_installed
from autofuse.fx.rewrite import module_plan
from autofuse.fx.session import fuse, gain_checks, model_check, optimize, planner, session, site_checks

D = 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(-2, -1) / math.sqrt(D)
        return torch.softmax(scores, -1) @ self.v(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.attention = nn.Parameter(torch.rand(D)), Attention()

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def raises(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("a fault of our own\nin two lines")


PARTS: tuple[tuple[Any, str, bool, str], ...] = (
    (fuse, "calls_of", False, "looking at the model"),
    (fuse, "plan_calls", False, "looking at the model"),
    (fuse, "keep_faster_sites", False, "looking at the model"),
    (planner, "trace_forward", True, "reading and rewriting it"),
    (planner, "plan_trace", True, "reading and rewriting it"),
    (module_plan, "capture_trace", True, "reading and rewriting it"),
    (module_plan, "sites", True, "reading and rewriting it"),
    (module_plan, "rewrite", True, "reading and rewriting it"),
    (module_plan, "build_variant", True, "reading and rewriting it"),
    (site_checks, "ForwardTrial", True, "checking it"),
    (model_check, "ForwardTrial", False, "checking the whole model"),
    (optimize, "fuse", False, "looking at the model"),
)


@pytest.mark.parametrize("lazily", [False, True], ids=["example", "lazily"])
@pytest.mark.parametrize(("part", "name", "at_calls", "doing"), PARTS, ids=lambda p: p if isinstance(p, str) else "")
def test_an_internal_error_is_a_line_of_the_report(
    part: Any, name: str, at_calls: bool, doing: str, lazily: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lazily and not at_calls:
        pytest.skip("it is not asked at a call")
    monkeypatch.setattr(part, name, raises)
    model, x = Block(), torch.randn(2, 6, D)
    expected = model(x)

    autofuse.optimize(model, None if lazily else x, tune=name == "keep_faster_sites")
    assert torch.equal(model(x), expected)
    assert torch.equal(model(x), expected)

    report = autofuse.report(model)
    assert not report.with_status("fused")
    told = [s for s in report.sites if s.reason_code == "internal-error"]
    assert told
    assert all(f"autofuse failed while {doing}: ZeroDivisionError: a fault of our own;" in s.reason for s in told)
    assert all("not in the model, and the original runs" in s.reason for s in told)


def test_if_timing_fails_verified_sites_stay_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain_checks, "_time_sites", raises)
    model, x = Block(), torch.randn(2, 6, D)
    autofuse.optimize(model, x, tune=True)

    report = autofuse.report(model)
    assert len(report.with_status("fused")) == 2
    assert {s.reason for s in report.sites if s.reason_code == "internal-error"} == {
        "autofuse failed while timing it: ZeroDivisionError: a fault of our own; "
        "this is a bug in autofuse, not in the model, and what was checked stays fused"
    }


@pytest.mark.parametrize("lazily", [False, True], ids=["example", "lazily"])
def test_a_site_that_cannot_be_installed_is_not_reported_as_fused(
    lazily: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = session.install

    def fails_for_variants(module: nn.Module, variants: Any, *rest: Any) -> None:
        raises() if variants else install(module, variants, *rest)

    monkeypatch.setattr(session, "install", fails_for_variants)
    model, x = Block(), torch.randn(2, 6, D)
    expected = model(x)
    autofuse.optimize(model, None if lazily else x, tune=False)

    for _ in range(3):
        assert torch.equal(model(x), expected)
    report = autofuse.report(model)
    assert not report.with_status("fused")
    assert len([s for s in report.sites if "installing its new forward" in s.reason]) >= 2
    assert not any(map(is_installed, model.modules()))


def test_the_log_has_the_traceback(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(planner, "plan_trace", raises)
    with caplog.at_level(logging.DEBUG, "autofuse"):
        autofuse.optimize(Block(), torch.randn(2, 6, D))

    assert any(r.exc_info and r.exc_info[0] is ZeroDivisionError for r in caplog.records)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("lazily", [False, True], ids=["example", "lazily"])
def test_an_interrupt_of_the_user_is_passed_on(
    lazily: bool, stop: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(*args: Any, **kwargs: Any) -> Any:
        raise stop

    monkeypatch.setattr(planner, "plan_trace", stops)
    model, x = Block(), torch.randn(2, 6, D)
    with pytest.raises(stop):
        autofuse.optimize(model, None if lazily else x)
        model(x)
    monkeypatch.undo()

    autofuse.optimize(model, x, tune=False)
    assert len(autofuse.report(model).with_status("fused")) == 2


RULE = '''
from __future__ import annotations
from typing import TYPE_CHECKING
from autofuse.rule import Captures, Fused, Holds, Rule, Verdict

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F


class Own(Rule):
    """A user-defined rule."""

    code = "MY101"

    @staticmethod
    def before(x, w):
        return torch.sin(torch.tanh(x))

    @staticmethod
    def after(x, w):
        return F.softplus(x)

    @staticmethod
    def where(captures: Captures) -> Verdict:
        if captures.rank("x") is not None:
            raise ValueError("a rule's own fault")
        return Holds()

    examples = (Fused("as written", before="import torch\\\\ndef f(x): return torch.sin(torch.tanh(x))\\\\n"),)
'''


class Sines(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return torch.sin(torch.tanh(x))


@pytest.fixture
def rule_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "own.py").write_text(RULE.replace("(x, w)", "(x)").replace("\\\\n", "\\n"))
    (tmp_path / "pyproject.toml").write_text('[tool.autofuse]\nrules = ["rules/"]\n')
    monkeypatch.chdir(tmp_path)
    yield


@pytest.mark.usefixtures("rule_that_raises")
@pytest.mark.parametrize("lazily", [False, True], ids=["example", "lazily"])
def test_a_rule_that_raises_is_left_out_and_the_others_apply(lazily: bool) -> None:
    model, x = Sines(), torch.randn(2, 6, D)
    expected = model(x)
    autofuse.optimize(model, None if lazily else x, tune=False)

    torch.testing.assert_close(model(x), expected)
    report = autofuse.report(model)
    assert [s.rule for s in report.with_status("fused")] == ["AF202"]
    (told,) = [s for s in report.sites if s.reason_code == "rule-failed"]
    assert told.reason == (
        "a rule failed and is skipped: RuleError: Own.where raised ValueError: a rule's own fault. "
        "Correct it in the rule's file."
    )


# Modules with a method that raises.


class NoText(Attention):
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class NoEquality(Attention):
    __hash__ = nn.Module.__hash__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")


class NoHash(Attention):
    def __hash__(self) -> int:
        raise RuntimeError("no hash")


class NoBool(Attention):
    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class NoProperty(Attention):
    @property
    def device(self) -> torch.device:
        raise RuntimeError("no device")

    @property
    def config(self) -> object:
        raise AttributeError("no config")


class NoDirectory(Attention):
    def __dir__(self) -> list[str]:
        raise RuntimeError("no directory")


class NoReduction(Attention):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("no pickle")

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("no copy")


class NoCast(Attention):
    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        raise RuntimeError("no cast")


class NoSubclass(Attention):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise RuntimeError("no subclass")


class NoState(Attention):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no state")

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no names")

    def train(self, mode: bool = True) -> Any:
        raise RuntimeError("no mode")


class NoName(Attention):
    def _get_name(self) -> str:
        raise RuntimeError("no name")


HOSTILE = (
    NoText, NoEquality, NoHash, NoBool, NoProperty, NoDirectory, NoReduction, NoCast, NoSubclass, NoState, NoName,
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lazily", [False, True], ids=["example", "lazily"])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_module_that_raises_when_it_is_inspected_runs_as_before(
    kind: type[Attention], inside: bool, lazily: bool, dtype: torch.dtype
) -> None:
    model: nn.Module = kind()
    for p in model._parameters, *(m._parameters for m in model._modules.values() if m is not None):
        p.update({n: nn.Parameter(t.detach().to(dtype)) for n, t in p.items() if t is not None})
    if inside:
        model = nn.Sequential(model, nn.Identity())
    x = torch.randn(2, 6, D, dtype=dtype)
    expected = model(x)

    autofuse.optimize(model, None if lazily else x, tune=False)
    for _ in range(2):
        torch.testing.assert_close(model(x), expected)
    autofuse.report(model)


class Loud(Tensor):
    """A tensor that raises for unknown functions."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("scaled_dot_product_attention", "rms_norm", "size", "__get__"):
            raise RuntimeError(f"{func} is not for me")
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("lazily", [False, True], ids=["example", "lazily"])
def test_a_tensor_that_refuses_other_functions_runs_the_original(lazily: bool) -> None:
    model, x = Block(), torch.randn(2, 6, D)
    autofuse.optimize(model, None if lazily else x, tune=False)
    model(x)
    expected = model(x)
    found = model(x.as_subclass(Loud))

    torch.testing.assert_close(found.as_subclass(Tensor), expected)
