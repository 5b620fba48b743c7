"""The owner of the running operator, from calls and autograd's nodes, without counting."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.profiling.live.module_calls import ModuleNames, around_calls
from autofuse.profiling.live.operator_owner import Owner, Running
from autofuse.results.profile import OUTSIDE


class Told(torch.autograd.Function):
    """The identity. It records the owner forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, running: Running, told: list[Owner]) -> Tensor:
        ctx.running, ctx.told = running, told
        told.append(running.now())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.told.append(ctx.running.now())
        return gradients[0], None, None


class Telling(nn.Module):
    def __init__(self, running: Running, told: list[Owner]) -> None:
        super().__init__()
        self.running, self.told = running, told

    def forward(self, x: Tensor) -> Any:
        return Told.apply(x, self.running, self.told)


def test_a_node_belongs_to_the_call_in_which_it_was_made() -> None:
    running, told = Running(), []  # type: ignore[var-annotated]
    model = nn.Sequential(Telling(running, told), nn.ReLU(), Telling(running, told))

    with around_calls(ModuleNames({"": model}), running.called):
        made = Told.apply(model(torch.ones(3, requires_grad=True)), running, told)
        made.sum().backward()

    forward, backward = told[:3], told[3:]
    assert forward == [Owner(name, "forward", False) for name in ("0", "2", OUTSIDE)]
    assert backward == [Owner(name, "backward", False) for name in (OUTSIDE, "2", "0")]


def test_a_call_in_another_thread_belongs_to_that_thread() -> None:
    running, told = Running(), []  # type: ignore[var-annotated]
    model = Telling(running, told)

    def work() -> None:
        model(torch.ones(3))

    with around_calls(ModuleNames({"model": model}), running.called):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        told.append(running.now())

    assert [whose.fqn for whose in told] == ["model", OUTSIDE]
