"""Functions that run after the import of a module, and that the import itself is unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autofuse.kernels.when_imported import when_imported

COUNTED = """\
import sys
import torch
from autofuse import ops
assert "torch.utils.flop_counter" not in sys.modules
from torch.utils.flop_counter import FlopCounterMode
x, weight = torch.randn(64, 32), torch.randn(100, 32)
with FlopCounterMode(display=False) as counted:
    ops.linear_cross_entropy(x, weight, torch.randint(0, 100, (64,)))
print(counted.get_total_flops())
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A module that can be imported, and never was."""
    made = f"late_{abs(hash(request.node.name))}"
    (tmp_path / f"{made}.py").write_text("import os\nif os.environ.get('BREAK'):\n    raise RuntimeError\nVALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return made


def test_the_function_runs_right_after_the_import_and_never_before(name: str) -> None:
    seen: list[int] = []
    when_imported(name, lambda module: seen.append(module.VALUE))
    when_imported(name, lambda module: seen.append(module.VALUE + 1))
    assert seen == [] and name not in sys.modules
    __import__(name)
    assert seen == [7, 8]


def test_the_function_runs_at_once_if_the_module_is_imported() -> None:
    seen: list[ModuleType] = []
    when_imported("json", seen.append)
    assert seen == [sys.modules["json"]]


def test_module_and_finders_are_restored(name: str) -> None:
    finders = list(sys.meta_path)
    when_imported(name, lambda _: None)
    module = __import__(name)
    assert sys.meta_path == finders
    assert module.__spec__ is not None and module.__spec__.loader is module.__loader__
    assert type(module.__loader__).__name__ == "SourceFileLoader"


def test_a_failed_import_may_be_repeated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ModuleType] = []
    when_imported(name, seen.append)
    monkeypatch.setenv("BREAK", "1")
    with pytest.raises(RuntimeError):
        __import__(name)
    assert seen == []
    monkeypatch.delenv("BREAK")
    assert [__import__(name)] == seen


def test_torchs_counter_knows_our_operators_though_it_is_imported_after_them() -> None:
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2 * 64 * 32 * 100
