"""Functions with side effects, and values with a state, are recognised."""

from __future__ import annotations

import contextvars
import itertools
import math
import random
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

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
