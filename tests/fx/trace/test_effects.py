"""Functions with side effects, and values with a state, are recognised."""

from __future__ import annotations

import contextvars
import gc
import itertools
import math
import random
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import autofuse
from autofuse.fx.trace import effects


@pytest.mark.parametrize("function", [len, math.sqrt, [].append, {}.get, "a".join, torch.is_grad_enabled, np.dot])
def test_functions_that_only_compute_have_no_effect(function: Any) -> None:
    assert effects.effect_of_builtin(function) == ""


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (print, "print"), (open, "io.open"), (time.time, "time.time"), (random.Random(0).random, "random.random"),
        (contextvars.ContextVar("x").set, "ContextVar.set"), (threading.Lock().acquire, "lock.acquire"),
        (torch.set_num_threads, "torch.set_num_threads"),
    ],
)  # fmt: skip
def test_functions_with_side_effects_are_named(function: Any, name: str) -> None:
    assert effects.effect_of_builtin(function) == name


def test_functions_of_python_are_judged_by_their_module() -> None:
    assert effects.effect_of_function(vars(random), "choice") == "random.choice"
    assert effects.effect_of_function({"__name__": "functools"}, "reduce") == ""
    assert effects.effect_of_function({"__name__": "my_model"}, "forward") == ""


@pytest.mark.parametrize("value", [iter([1]), itertools.count(), threading.Lock(), (i for i in ())])
def test_values_with_a_state_are_named(value: Any) -> None:
    assert effects.kind_of_state(value)


@pytest.mark.parametrize("value", [3, "a", [1], {}, torch.ones(1), np.ones(1), object(), random.Random(0), range(3)])
def test_other_values_have_no_state(value: Any) -> None:
    assert not effects.kind_of_state(value)


@pytest.mark.parametrize("make", [lambda: random.Random(0), lambda: np.random.default_rng(0), torch.Generator])
def test_the_state_of_a_generator_changes_when_it_draws(make: Any) -> None:
    generator = make()
    before = effects.random_state(generator)
    if isinstance(generator, torch.Generator):
        torch.rand(1, generator=generator)
    else:
        generator.random()
    after = effects.random_state(generator)
    assert str(before) != str(after) if not isinstance(before, torch.Tensor) else not torch.equal(before, after)
    assert effects.random_state(3) is None


def test_libraries_and_parts_of_python_are_recognised_by_name() -> None:
    assert effects.is_library("torch.nn") and effects.is_library("autofuse.ops") and effects.is_library("numpy")
    assert effects.is_standard("json") and not effects.is_standard("__main__")
    assert not effects.is_library("autofuse.demo.model") and not effects.is_library("my_torch")


class Finalized:
    freed: list[str] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.scale = 0.5

    def __del__(self) -> None:
        self.freed.append("freed")


class FinalizedChild(nn.Linear):
    def __del__(self) -> None:
        Finalized.freed.append("child")


class Holding(nn.Module):
    """Attends with the number of an object, or calls a child, that runs code when it is freed."""

    def __init__(self, child: bool) -> None:
        super().__init__()
        self.held = Finalized()
        self.child: nn.Module = FinalizedChild(4, 4) if child else nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.child(x) @ x.mT * self.held.scale).softmax(-1) @ x


@pytest.mark.parametrize("child", [False, True])
@pytest.mark.parametrize("examples", [None, (torch.ones(2, 3, 4),)])
def test_no_copy_runs_a_finalizer(child: bool, examples: Any) -> None:
    model = Holding(child)
    Finalized.freed.clear()
    autofuse.optimize(model, examples, tune=False)
    for _ in range(2):
        model(torch.ones(2, 3, 4))
    gc.collect()
    assert Finalized.freed == []
