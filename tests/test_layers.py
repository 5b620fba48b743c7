"""The import contracts of pyproject.toml: layers, no import cycles, folders without torch, plain results."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
BROKEN = [
    pytest.param(
        "results/table.py", "from autofuse.display import terminal", "Each folder imports only those below it",
        id="results import drawing",
    ),
    pytest.param(
        "results/table.py", "import rich", "Results are plain data", id="results import rich",
    ),
    pytest.param(
        "kernels/policy.py", "import autofuse.ops", "Each folder imports only those below it",
        id="kernels import operations",
    ),
    pytest.param(
        "match/site.py", "if TYPE_CHECKING:\n    from autofuse.match.engine import sites", "No import cycle",
        id="a cycle of imports for types only",
    ),
    pytest.param(
        "source/capture/scope.py", "import torch", "need no torch", id="torch in the codemod",
    ),
    pytest.param(
        "fx/trace/twin.py", "from autofuse.fx.session import session", "The FX pass", id="a trace imports sessions",
    ),
    pytest.param("newcomer.py", "", "Each folder imports only those below it", id="a file in no layer"),
]  # fmt: skip


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the tree in `folder`. It reads imports, and runs no code of the tree."""
    code = (
        "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    command = [sys.executable, "-c", code, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_every_contract_holds() -> None:
    done = lint(REPOSITORY)
    assert done.returncode == 0, done.stdout
    assert " kept, 0 broken" in done.stdout


@pytest.mark.parametrize(("file", "line", "contract"), BROKEN)
def test_a_forbidden_import_breaks_its_contract(tmp_path: Path, file: str, line: str, contract: str) -> None:
    shutil.copytree(REPOSITORY / "autofuse", tmp_path / "autofuse", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    broken = tmp_path / "autofuse" / file
    text = broken.read_text() if broken.exists() else '"""New."""\n'
    broken.write_text(f"{text}\nfrom typing import TYPE_CHECKING\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert any(contract in told and "BROKEN" in told for told in done.stdout.splitlines()), done.stdout
