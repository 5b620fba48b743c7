"""A realistic training program with state everywhere computes the same with and without optimize, over 200 steps."""

from __future__ import annotations

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


def run(way: str | None) -> tuple[Any, list[nn.Module]]:
    """Runs the program, and returns a snapshot of its state and the modules that were optimized."""
    spec = importlib.util.spec_from_file_location(NAME, Path(__file__).parent / "long_program.py")
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
        return plain({**module.run(prepare), "drawn": torch.rand(3)}, NAME), optimized
    finally:
        del sys.modules[NAME]


@cache
def original() -> Any:
    return run(None)[0]


@pytest.mark.parametrize("way", [WAYS[0], pytest.param(WAYS[1], marks=pytest.mark.night)])
def test_a_program_with_state_everywhere_computes_the_same_over_200_steps(way: str) -> None:
    wrong = _find_differences(way)
    known = f"the long program [{way}]" in KNOWN.read_text().splitlines()
    assert bool(wrong) == known, wrong or "the program is right now, remove it from known.txt"


def _find_differences(way: str) -> list[str]:
    try:
        seen, optimized = run(way)
    except Exception as error:
        return [f"raises {type(error).__name__}: {error}"]
    if not any(autofuse.report(m).with_status("fused") for m in optimized):
        return ["nothing is fused"]
    return list(islice(differences(original(), seen, 1e-8), 5))
