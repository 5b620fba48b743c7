"""A watcher is called for the user's functions and lines, and for effects before they happen."""

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


class Recorder(Watcher):
    def __init__(self) -> None:
        self.ran: list[str] = []
        self.lines: dict[str, int] = {}
        self.events: list[Any] = []

    def on_function(self, ran: Execution) -> None:
        self.ran.append(ran.code.co_name)

    def on_line(self, ran: Execution, line: int) -> None:
        self.lines[ran.code.co_name] = self.lines.get(ran.code.co_name, 0) + 1

    def on_effect(self, what: str) -> None:
        self.events.append(what)

    def on_torch_query(self, function: Callable[[], Any]) -> None:
        self.events.append(function)

    def on_environment_read(self, key: object) -> None:
        self.events.append(("environment", key))


class RaisesOnEffect(Watcher):
    def on_effect(self, what: str) -> None:
        raise InterruptedError(what)


def helper(x: torch.Tensor) -> torch.Tensor:
    if x.dim() > 3:
        raise ValueError(x)
    return x + 1


def query_state() -> None:
    torch.is_grad_enabled()
    os.environ.get("HOME")


WRITTEN: list[float] = []


def read_clock() -> None:
    WRITTEN.append(time.perf_counter())


def test_functions_and_lines_that_run_are_reported() -> None:
    recorder = Recorder()
    with watch(recorder):
        helper(helper(torch.ones(2)))
    assert recorder.ran == ["helper"] and recorder.lines == {"helper": 2}


def test_reads_of_state_are_reported() -> None:
    recorder = Recorder()
    with watch(recorder):
        query_state()
    assert recorder.events == [torch.is_grad_enabled, ("environment", "HOME")]


def test_an_effect_can_be_stopped_before_it_happens() -> None:
    WRITTEN.clear()
    with pytest.raises(InterruptedError, match=r"time\.perf_counter"), watch(RaisesOnEffect()):
        read_clock()
    assert not WRITTEN


def test_code_inside_torch_is_not_watched() -> None:
    recorder = Recorder()
    with watch(recorder), NoWatchInTorch():
        torch.ones(2).sum()
    assert not recorder.ran
    with watch(recorder), pause_watching():
        helper(torch.ones(2))
    assert not recorder.ran


def test_watches_can_be_nested() -> None:
    outer, inner = Recorder(), Recorder()
    with watch(outer):
        with watch(inner):
            helper(torch.ones(2))
        query_state()
    assert inner.ran == ["helper"] and outer.ran == ["helper", "query_state"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_watch_restores_the_hooks_of_python(fails: bool) -> None:
    before = sys.getprofile(), sys.gettrace()
    try:
        with watch(RaisesOnEffect()):
            if fails:
                read_clock()
    except InterruptedError:
        pass
    assert (sys.getprofile(), sys.gettrace()) == before


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_not_reported(enabled: bool) -> None:
    lists: list[list[int]] = []

    def callback(phase: str, _: dict[str, int]) -> None:
        time.perf_counter()

    recorder, before, was_enabled = Recorder(), gc.get_threshold(), gc.isenabled()
    gc.callbacks.append(callback)
    try:
        (gc.enable if enabled else gc.disable)()
        gc.set_threshold(1)
        with watch(recorder):
            for n in range(100):
                lists.append([n])
        assert gc.isenabled() == enabled
    finally:
        gc.callbacks.remove(callback)
        gc.set_threshold(*before)
        (gc.enable if was_enabled else gc.disable)()
    assert recorder.ran == [] and recorder.events == []


def test_kernels_and_compilers_are_not_reported() -> None:
    recorder, x = Recorder(), torch.rand(2, 8)
    with watch(recorder):
        ops.rms_norm(x, torch.ones(8))
        helper(x)
    assert recorder.ran == ["helper"] and recorder.events == []
