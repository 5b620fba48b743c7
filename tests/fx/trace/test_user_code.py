"""While a watch lasts, the user's functions and lines are heard of, and effects before they happen."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autofuse import ops
from autofuse.fx.trace.user_code import Execution, NoWatchInTorch, Watcher, pause_watching, watch


class Heard(Watcher):
    def __init__(self) -> None:
        self.ran: list[str] = []
        self.lines: dict[str, int] = {}
        self.told: list[Any] = []

    def on_function(self, ran: Execution) -> None:
        self.ran.append(ran.code.co_name)

    def on_line(self, ran: Execution, line: int) -> None:
        self.lines[ran.code.co_name] = self.lines.get(ran.code.co_name, 0) + 1

    def on_effect(self, what: str) -> None:
        self.told.append(what)

    def on_torch_query(self, function: Callable[[], Any]) -> None:
        self.told.append(function)

    def on_environment_read(self, key: object) -> None:
        self.told.append(("environment", key))


class Stops(Watcher):
    def on_effect(self, what: str) -> None:
        raise InterruptedError(what)


def helper(x: torch.Tensor) -> torch.Tensor:
    if x.dim() > 3:
        raise ValueError(x)
    return x + 1


def asks() -> None:
    torch.is_grad_enabled()
    os.environ.get("HOME")


WRITTEN: list[float] = []


def waits() -> None:
    WRITTEN.append(time.perf_counter())


def test_functions_and_lines_that_run_are_heard_of() -> None:
    heard = Heard()
    with watch(heard):
        helper(helper(torch.ones(2)))
    assert heard.ran == ["helper"] and heard.lines == {"helper": 2}


def test_questions_are_heard_of() -> None:
    heard = Heard()
    with watch(heard):
        asks()
    assert heard.told == [torch.is_grad_enabled, ("environment", "HOME")]


def test_an_effect_can_be_stopped_before_it_happens() -> None:
    WRITTEN.clear()
    with pytest.raises(InterruptedError, match=r"time\.perf_counter"), watch(Stops()):
        waits()
    assert not WRITTEN


def test_what_torch_does_inside_is_not_followed() -> None:
    heard = Heard()
    with watch(heard), NoWatchInTorch():
        torch.ones(2).sum()
    assert not heard.ran
    with watch(heard), pause_watching():
        helper(torch.ones(2))
    assert not heard.ran


def test_watches_may_lie_in_one_another() -> None:
    outer, inner = Heard(), Heard()
    with watch(outer):
        with watch(inner):
            helper(torch.ones(2))
        asks()
    assert inner.ran == ["helper"] and outer.ran == ["helper", "asks"]


@pytest.mark.parametrize("fails", [True, False])
def test_nothing_is_left_of_a_watch(fails: bool) -> None:
    before = sys.getprofile(), sys.gettrace()
    try:
        with watch(Stops()):
            if fails:
                waits()
    except InterruptedError:
        pass
    assert (sys.getprofile(), sys.gettrace()) == before


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_no_part_of_what_runs(enabled: bool) -> None:
    kept: list[list[int]] = []

    def callback(phase: str, _: dict[str, int]) -> None:
        time.perf_counter()

    heard, before, was = Heard(), gc.get_threshold(), gc.isenabled()
    gc.callbacks.append(callback)
    try:
        (gc.enable if enabled else gc.disable)()
        gc.set_threshold(1)
        with watch(heard):
            for n in range(100):
                kept.append([n])
        assert gc.isenabled() == enabled
    finally:
        gc.callbacks.remove(callback)
        gc.set_threshold(*before)
        (gc.enable if was else gc.disable)()
    assert heard.ran == [] and heard.told == []


def test_what_a_kernel_and_a_compiler_do_is_none_of_the_users_code() -> None:
    heard, x = Heard(), torch.rand(2, 8)
    with watch(heard):
        ops.rms_norm(x, torch.ones(8))
        helper(x)
    assert heard.ran == ["helper"] and heard.told == []
