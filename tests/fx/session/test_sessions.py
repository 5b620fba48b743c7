"""Which models are optimized: one session each, dropped whole where it fails."""

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


def installed(model: nn.Module) -> bool:
    return any(is_installed(m) for m in model.modules())


def test_a_session_ends_with_its_model(tokens: Tensor) -> None:
    model = autofuse.optimize(Gpt(), tokens)
    session = weakref.ref(sessions.session_of(model))  # type: ignore[arg-type]
    del model
    for _ in range(3):  # what a finalizer lets go is collected in the next round
        gc.collect()
    assert session() is None


def test_where_optimize_is_interrupted_the_model_is_its_own(tokens: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    model = Gpt()
    monkeypatch.setattr("autofuse.fx.session.fuse.check_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        autofuse.optimize(model, tokens)
    assert not installed(model) and sessions.session_of(model) is None
    assert autofuse.report(model).sites == ()


def test_a_part_that_is_optimized_with_its_model_is_no_session_of_its_own(tokens: Tensor) -> None:
    model = Gpt()
    autofuse.optimize(model.get_submodule("blocks.0"), torch.randn(2, 8, 16))
    autofuse.optimize(model, tokens)
    assert sessions.session_of(model.get_submodule("blocks.0")) is None
    part = autofuse.report(model.get_submodule("blocks.0"))
    assert {s.module for s in part if s.status == "fused"} == {"blocks.0", "blocks.0.attn"}


def test_a_block_that_optimizes_gives_back_what_was_there_before(tokens: Tensor) -> None:
    model = autofuse.optimize(Gpt(), tokens)
    before = sessions.session_of(model)
    with autofuse.optimized(model, tokens, select="AF2"):
        assert sessions.session_of(model) is not before
    assert sessions.session_of(model) is before and installed(model)


@pytest.mark.parametrize("call", [autofuse.report, autofuse.restore, autofuse.optimize])
def test_what_is_no_module_is_refused_in_a_sentence(call: object) -> None:
    with pytest.raises(TypeError, match=r"takes a torch.nn.Module, and was given a str\. Pass the model itself"):
        call("model")  # type: ignore[operator]
