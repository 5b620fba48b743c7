"""Trains an example unchanged, optimized and rewritten, from the same seed, and compares the loss curves.

The bound on their difference is that of the demo (autofuse/demo/agreement.py): the effect of the largest gradient error
that verification allows on the same training.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import autofuse
from autofuse.cli import main as cli
from autofuse.demo.agreement import Agreement, agreement, gradient_error
from autofuse.demo.training import wrong_gradients

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS, SEED = 6, 3


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The agreement of the loss curves, the rules of the fused sites, and the text of the file that ran."""

    agreement: Agreement
    fused: frozenset[str]
    text: str


@dataclasses.dataclass(frozen=True)
class Script:
    """A loaded example. `model_name` is the class of its model, and `config` overrides its defaults."""

    path: Path
    module: ModuleType
    model_name: str
    config: dict[str, Any]

    def model(self, source: ModuleType | None = None) -> nn.Module:
        """A new model of the example or of its rewritten file, always with the same weights."""
        module = source or self.module
        torch.manual_seed(SEED)
        return getattr(module, self.model_name)(module.Config(**self.config))

    def train_optimized(self, example_inputs: Any) -> Outcome:
        """Trains the original and an optimized copy."""
        model = autofuse.optimize(self.model(), example_inputs)
        report = autofuse.report(model)
        fused = [site for site in report.sites if site.status == "fused"]
        error = gradient_error([site.max_error for site in fused])
        losses = self.module.train(model, STEPS, SEED)
        return Outcome(self.compare(losses, error), frozenset(s.rule for s in fused), self.path.read_text())

    def train_rewritten(self, folder: Path, *options: str) -> Outcome:
        """Trains the original and the file after `autofuse rewrite`. A second rewrite must change nothing."""
        other = self.rewrite_module(folder, *options)
        losses = other.train(self.model(other), STEPS, SEED)
        return Outcome(self.compare(losses, gradient_error([])), frozenset(), (folder / self.path.name).read_text())

    def rewrite_module(self, folder: Path, *options: str) -> ModuleType:
        """The file after `autofuse rewrite` with these options, loaded."""
        target = folder / self.path.name
        target.write_bytes(self.path.read_bytes())
        assert cli(["rewrite", *options, str(target)]) == 0
        text = target.read_text()
        assert cli(["rewrite", *options, str(target)]) == 0
        assert target.read_text() == text
        return load_module(target)

    def compare(self, losses: list[float], error: float) -> Agreement:
        """Compares `losses` with the losses of the original."""
        eager = self.module.train(self.model(), STEPS, SEED)
        handle = register_optimizer_step_pre_hook(wrong_gradients(error, SEED))
        try:
            control = self.module.train(self.model(), STEPS, SEED)
        finally:
            handle.remove()
        return agreement(eager, losses, control, error)


def load_module(path: Path) -> ModuleType:
    """Loads a file as a module, and registers it, because dataclasses look up their module."""
    name = f"example_{path.stem}_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script() -> Iterator[Any]:
    """Yields a function that loads an example by name."""

    def load(name: str, model_name: str, **config: Any) -> Script:
        path = EXAMPLES / f"{name}.py"
        return Script(path, load_module(path), model_name, config)

    before = set(sys.modules)
    yield load
    for name in set(sys.modules) - before:
        if name.startswith("example_"):
            del sys.modules[name]
