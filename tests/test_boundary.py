"""Only certain folders may import torch. Everything else works without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ALLOWED = (
    "fx", "integrations", "ops", "kernels", "measure", "demo", "torch_private", "verify", "profiling/live",
    "profiling/plan", "planning", "monitoring",
)  # fmt: skip
NEED_TORCH = {"demo", "plan", "profile", "tune"}  # commands that import these folders, and are imported on demand
HEAVY = ("torch", "numpy", "einops", "transformers")
LAZY = ("autofuse/__init__.py",)  # may import inside a function
ATTENTION = """\
import torch
def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v
"""


def _source_files() -> Iterator[Path]:
    for root in ("autofuse", "rules"):
        yield from sorted((REPOSITORY / root).rglob("*.py"))


def core_files() -> list[Path]:
    return [f for f in _source_files() if not f.is_relative_to(REPOSITORY / "autofuse") or not _may_import_torch(f)]


def _may_import_torch(file: Path) -> bool:
    return any(file.is_relative_to(REPOSITORY / "autofuse" / folder) for folder in ALLOWED)


def _importable_core() -> list[str]:
    commands = {REPOSITORY / "autofuse" / "cli" / f"{name}.py" for name in NEED_TORCH}
    return [_module(f) for f in core_files() if f.name != "__main__.py" and f not in commands]


def _module(file: Path) -> str:
    parts = file.relative_to(REPOSITORY).with_suffix("").parts
    parts = ("autofuse", *parts) if parts[0] == "rules" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _run(code: str, *arguments: str, cwd: Path = REPOSITORY) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_core_module_can_be_imported_without_torch() -> None:
    modules = _importable_core()
    assert {"autofuse", "autofuse.cli", "autofuse.match.engine", "autofuse.rules.attention"} <= set(modules)
    code = (
        "import importlib, sys\n"
        f"for name in {HEAVY}: sys.modules[name] = None\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
    )
    _run(code, *modules)


def test_no_core_module_imports_an_installed_torch() -> None:
    modules = _importable_core()
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        f"print(sorted({{m.partition('.')[0] for m in sys.modules}} & set({HEAVY})))"
    )
    assert _run(code, *modules) == "[]\n"


def test_a_whole_rewrite_runs_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(ATTENTION)
    code = (
        "import sys\n"
        f"for name in {HEAVY}: sys.modules[name] = None\n"
        "from autofuse.cli import main\n"
        "sys.exit(main(['rewrite', '--unsafe', 'model.py']))"
    )
    _run(code, cwd=tmp_path)
    assert "scaled_dot_product_attention(" in path.read_text()


def test_a_whole_rewrite_does_not_import_an_installed_torch(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ATTENTION)
    code = (
        "import sys\n"
        "from autofuse.cli import main\n"
        "main(['rewrite', 'model.py']), main(['check', '.']), main(['explain', 'AF1']), main(['rules'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    _run(code, cwd=tmp_path)


@pytest.mark.parametrize("file", core_files(), ids=lambda f: str(f.relative_to(REPOSITORY)))
def test_a_core_file_names_torch_only_for_type_checking(file: Path) -> None:
    assert [name for name in imports(ast.parse(file.read_text())) if name.partition(".")[0] in HEAVY] == []


@pytest.mark.parametrize("file", list(_source_files()), ids=lambda f: str(f.relative_to(REPOSITORY)))
def test_no_function_imports_except_in_the_package_itself(file: Path) -> None:
    functions = [
        n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inside = [name for function in functions for name in imports(function)]
    assert inside == [] or str(file.relative_to(REPOSITORY)) in LAZY


def imports(node: ast.AST) -> Iterator[str]:
    """Yield the modules that `node` may import when it runs. Code under `if TYPE_CHECKING` never runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (a.name for a in child.names)
        elif isinstance(child, ast.ImportFrom) and not child.level:
            yield child.module or ""
        yield from imports(child)
