"""Realistic programs with state everywhere compute the same with and without optimize, over 200 steps.

By day the two newer ones run fewer steps.
"""

from __future__ import annotations

import contextvars
import importlib.util
import sys
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autofuse
from tests.adversary.compare import differences
from tests.adversary.program import KNOWN, WAYS
from tests.adversary.values import plain

NAME = "adversary_long_program"


def run(file: str, way: str | None, steps: int = 40) -> tuple[Any, list[nn.Module]]:
    """Runs a program, and returns a snapshot of its state and the modules that were optimized."""
    spec = importlib.util.spec_from_file_location(NAME, Path(__file__).parent / f"{file}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    optimized: list[nn.Module] = []

    def prepare(model: nn.Module, examples: tuple[Any, ...]) -> nn.Module:
        if way is None:
            return model
        optimized.append(model)
        return autofuse.optimize(model, examples if way == "examples" else None, tune=False)

    try:
        spec.loader.exec_module(module)
        found = contextvars.copy_context().run(module.run, prepare, steps)
        return plain({**found, "next draw": torch.rand(3)}, NAME), optimized
    finally:
        del sys.modules[NAME]


@cache
def original(file: str, steps: int) -> Any:
    return run(file, None, steps)[0]


@pytest.mark.parametrize("way", [WAYS[0], pytest.param(WAYS[1], marks=pytest.mark.night)])
def test_a_program_with_state_everywhere_computes_the_same_over_200_steps(way: str) -> None:
    wrong = _find_differences("long_program", way)
    known = f"the long program [{way}]" in KNOWN.read_text().splitlines()
    assert bool(wrong) == known, wrong or "the program is right now, remove it from known.txt"


@pytest.mark.parametrize("steps", [4, pytest.param(40, marks=pytest.mark.night)])
@pytest.mark.parametrize(("file", "way"), [("long_images", WAYS[1]), ("long_agent", WAYS[0])])
def test_another_program_computes_the_same_after_each_change(file: str, way: str, steps: int) -> None:
    assert not _find_differences(file, way, steps)


@pytest.mark.night
@pytest.mark.parametrize(("file", "way"), [("long_images", WAYS[0]), ("long_agent", WAYS[1])])
def test_another_program_computes_the_same_in_the_other_way(file: str, way: str, steps: int = 40) -> None:
    assert not _find_differences(file, way, steps)


def _find_differences(file: str, way: str, steps: int = 40) -> list[str]:
    try:
        seen, optimized = run(file, way, steps)
    except Exception as error:
        return [f"raises {type(error).__name__}: {error}"]
    if not any(autofuse.report(m).with_status("fused") for m in optimized):
        return ["nothing is fused"]
    return list(islice(differences(original(file, steps), seen, 1e-8), 5))
