"""If an operation of a rewritten forward raises, the original computes the call. Other errors are raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.install.dispatch import entry_of, is_installed
from tests.fx.conftest import computed


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.softmax(q @ k.mT * 0.25, -1) @ v


class Keeps(Attention):
    def forward(self, x: Tensor, kept: list[Tensor]) -> Tensor:  # type: ignore[override]
        kept.append(x)
        return super().forward(x)


def of_torch(self: Attention, x: Tensor, *others: Any) -> Tensor:
    return torch.mm(x, x)


def of_ours(self: Attention, x: Tensor, *others: Any) -> Tensor:
    return autofuse.ops.attention(x, x[..., :3], x)


def of_a_child(self: Attention, x: Tensor, *others: Any) -> Tensor:
    self.qkv.register_forward_hook(_stops)
    return self.qkv(x)


def out_of_memory(self: Attention, x: Tensor, *others: Any) -> Tensor:
    raise torch.OutOfMemoryError("no room")


class Stopped(Exception):
    pass


def _stops(*_: Any) -> None:
    raise Stopped


def with_body(model: Attention, body: Callable[..., Tensor], *given: Any) -> Attention:
    """`model`, optimized, with a rewritten forward that runs `body`."""
    autofuse.optimize(model, given, tune=False)
    entry = entry_of(model)
    assert entry is not None
    entry.forward.__globals__["_run0"] = body
    return model


@pytest.mark.parametrize("body", [of_torch, of_ours])
def test_after_an_error_of_an_operation_the_original_runs(body: Callable[..., Tensor]) -> None:
    model, x = Attention(), torch.randn(2, 5, 8)
    expected = computed(model, x)
    with_body(model, body, x)
    for _ in range(2):
        found = computed(model, x)
        torch.testing.assert_close(found, expected)
    (site,) = autofuse.report(model).sites
    assert site.status == "rolled-back" and site.reason_code == "internal-error", site
    assert "running its new forward" in site.reason and not is_installed(model)


@pytest.mark.parametrize(("body", "error"), [(of_a_child, Stopped), (out_of_memory, torch.OutOfMemoryError)])
def test_other_errors_are_raised_as_they_are(body: Callable[..., Tensor], error: type[Exception]) -> None:
    model, x = Attention(), torch.randn(2, 5, 8)
    with_body(model, body, x)
    with pytest.raises(error):
        model(x)
    assert is_installed(model)


def test_if_the_original_raises_too_its_error_is_raised_and_nothing_is_rolled_back() -> None:
    model, x = Attention(), torch.randn(2, 5, 8)
    with_body(model, of_torch, x)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        model(torch.randn(2, 5, 8)[..., :7])  # no guard tests the last size, because the linear layer determines it
    assert is_installed(model) and autofuse.report(model).with_status("fused")


def test_a_forward_that_writes_to_an_argument_does_not_run_twice() -> None:
    model, x, kept = Keeps(), torch.randn(2, 5, 8), list[Tensor]()
    with_body(model, of_torch, x, kept)
    with pytest.raises(RuntimeError):
        model(x, kept)
    assert not kept and is_installed(model)
