"""Follows docs/writing-rules.md literally in a new folder: writes its files and runs its commands."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

PAGE = (Path(__file__).parents[1] / "docs" / "writing-rules.md").read_text()
STEPS = re.findall(r"(?:^`([\w./]+)`\n\n)?^```(python|toml|sh)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = {name: text for name, _, text in STEPS if name}
COMMANDS = [line for _, language, text in STEPS if language == "sh" for line in text.splitlines() if line]
CODES = {"MY101", "MY102", "MY103"}


def run(command: str, folder: Path) -> str:
    """The output of a command of the page. `check` exits with 1 if it finds something, as the page shows."""
    program, rest = command.split(" ", 1)
    start = [sys.executable] if program == "python" else [sys.executable, "-m", "autofuse"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    done = subprocess.run(
        [*start, *rest.split()], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    expected = 1 if rest.startswith("check") else 0
    assert done.returncode == expected, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def followed_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder after all steps of the page, and the output of each command."""
    folder = tmp_path_factory.mktemp("followed")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder, {command: run(command, folder) for command in COMMANDS}


def test_the_page_holds_three_rules_a_model_and_the_commands() -> None:
    assert [n for n in FILES if n.startswith("my_rules/")] == [
        "my_rules/softplus.py",
        "my_rules/normalize.py",
        "my_rules/group_norm.py",
    ]
    assert {"pyproject.toml", "model.py", "train.py"} < FILES.keys()
    assert len(COMMANDS) == 7


def test_the_rules_are_tested_by_one_command(followed_page: tuple[Path, dict[str, str]]) -> None:
    printed = followed_page[1]["autofuse rules --check"]
    assert set(re.findall(r"^(MY\d+)", printed, re.MULTILINE)) == CODES
    assert printed == followed_page[1]["autofuse rules --check my_rules/"]


def test_a_users_rule_is_explained(followed_page: tuple[Path, dict[str, str]]) -> None:
    printed = followed_page[1]["autofuse explain MY101"]
    assert "def before(" in printed and "torch.nn.functional.softplus(x)" in printed


def test_the_live_model_is_fused_and_verified(followed_page: tuple[Path, dict[str, str]]) -> None:
    printed = followed_page[1]["python train.py"]
    assert set(re.findall(r"(MY\d+) .* fused ", printed)) == CODES, printed
    assert "3 fused" in printed


def test_the_file_is_reported_and_rewritten(followed_page: tuple[Path, dict[str, str]]) -> None:
    folder, printed = followed_page
    assert set(re.findall(r"(MY\d+) \[", printed["autofuse check --select MY model.py"])) == CODES
    written = (folder / "model.py").read_text()
    for function in ("softplus(self.dense(x))", "normalize(x, dim=-1, eps=1e-6)", "group_norm("):
        assert f"nn.functional.{function}" in written, written
    diff = printed["autofuse rewrite --select MY --unsafe --diff model.py"]
    assert "+        x = nn.functional.softplus(self.dense(x))" in diff


def test_the_rewritten_file_computes_the_same(followed_page: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    (tmp_path / "original.py").write_text(FILES["model.py"])
    original, rewritten = make_model(tmp_path / "original.py"), make_model(followed_page[0] / "model.py")
    rewritten.load_state_dict(original.state_dict())
    images = torch.randn(4, 8, 5, 6, dtype=torch.double)
    for expected, found in zip(results(original, images), results(rewritten, images), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def make_model(path: Path) -> nn.Module:
    """Create the model of a file, in double precision."""
    spec = importlib.util.spec_from_file_location(f"followed_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = ModuleType(spec.name)
    spec.loader.exec_module(module)
    model: nn.Module = module.Model()
    return model.double()


def results(model: nn.Module, images: Tensor) -> list[Tensor]:
    """The results of a model, and the gradients of its inputs and parameters."""
    x = images.clone().requires_grad_()
    out = model(x)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    leaves = [x, *model.parameters()]
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)]
