"""Each optimized model has one session. A session that fails is discarded."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.install.dispatch import is_installed
from autofuse.fx.session import sessions
from tests.fx.conftest import Gpt


def has_installed(model: nn.Module) -> bool:
    return any(is_installed(m) for m in model.modules())


def test_a_session_ends_with_its_model(tokens: Tensor) -> None:
    model = autofuse.optimize(Gpt(), tokens)
    session = weakref.ref(sessions.session_of(model))  # type: ignore[arg-type]
    del model
    for _ in range(3):  # objects that a finalizer releases are collected in the next round
        gc.collect()
    assert session() is None


def test_if_optimize_is_interrupted_the_model_runs_its_original_forwards(
    tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    model = Gpt()
    monkeypatch.setattr("autofuse.fx.session.fuse.check_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        autofuse.optimize(model, tokens)
    assert not has_installed(model) and sessions.session_of(model) is None
    assert autofuse.report(model).sites == ()


def test_a_submodule_that_is_optimized_with_its_model_has_no_separate_session(tokens: Tensor) -> None:
    model = Gpt()
    autofuse.optimize(model.get_submodule("blocks.0"), torch.randn(2, 8, 16))
    autofuse.optimize(model, tokens)
    assert sessions.session_of(model.get_submodule("blocks.0")) is None
    part = autofuse.report(model.get_submodule("blocks.0"))
    assert {s.module for s in part if s.status == "fused"} == {"blocks.0", "blocks.0.attn"}


def test_after_the_block_of_optimized_the_earlier_session_is_back(tokens: Tensor) -> None:
    model = autofuse.optimize(Gpt(), tokens)
    before = sessions.session_of(model)
    with autofuse.optimized(model, tokens, select="AF2"):
        assert sessions.session_of(model) is not before
    assert sessions.session_of(model) is before and has_installed(model)


@pytest.mark.parametrize("call", [autofuse.report, autofuse.restore, autofuse.optimize])
def test_an_argument_that_is_not_a_module_is_an_error(call: object) -> None:
    with pytest.raises(TypeError, match=r"takes a torch.nn.Module, but got type str\. Pass the model itself"):
        call("model")  # type: ignore[operator]
