"""The installed package has every file, and CI runs the README's commands."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.test_boundary import core_files, imports

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
README = (REPOSITORY / "README.md").read_text()
ATTENTION = """\
import torch
def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v
"""


def commands() -> dict[str, str]:
    """The marked commands of the README, by name."""
    return dict(re.findall(r"<!-- command: (\w+) -->\n```sh\n(.*?)\n```", README))


def tree(root: str, package: str) -> set[str]:
    folders = {f.parent.relative_to(REPOSITORY / root) for f in (REPOSITORY / root).rglob("*.py")}
    return {".".join((package, *f.parts)) for f in folders}


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_every_folder_with_code_is_a_package_that_is_installed() -> None:
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(tree("autofuse", "autofuse") | tree("rules", "autofuse.rules"))
    assert len(set(listed)) == len(listed)


def test_every_package_has_a_docstring() -> None:
    missing = [
        p for p in (REPOSITORY / "autofuse").rglob("*/") if list(p.glob("*.py")) and not (p / "__init__.py").exists()
    ]
    assert missing == []


def test_every_other_file_of_a_package_is_declared_as_its_data() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    data = [f for f in (REPOSITORY / "autofuse").rglob("*") if f.is_file() and f.suffix not in (".py", ".pyc")]
    assert data
    assert [f for f in data if not any(f.match(p) for p in patterns)] == []


SERVER = REPOSITORY / "autofuse" / "cli" / "language_server.py"  # loaded by `autofuse server` alone


def foreign(files: list[Path]) -> set[str]:
    imported = {name.partition(".")[0] for f in files for name in imports(ast.parse(f.read_text()))}
    return imported - {*sys.stdlib_module_names, "autofuse", "rules", "markupsafe"}  # a part of jinja2


def declared_packages(dependencies: list[str]) -> set[str]:
    return {re.split(r"[<>=\[ ]", d)[0] for d in dependencies}


def test_an_installation_without_extras_has_exactly_the_imports_of_the_files_without_torch() -> None:
    names = declared_packages(PROJECT["project"]["dependencies"])
    assert foreign([f for f in core_files() if f != SERVER]) == names and "torch" not in names


def test_the_server_imports_only_its_extra() -> None:
    brought = declared_packages(PROJECT["project"]["optional-dependencies"]["server"]) | {
        "lsprotocol"
    }  # a part of pygls
    assert foreign([SERVER]) == brought


def test_every_tool_and_library_is_pinned() -> None:
    pinned = {line.split("==")[0] for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if "==" in line}
    extras = [d for group in PROJECT["project"]["optional-dependencies"].values() for d in group]
    wanted = {re.split(r"[<>=\[ ]", d)[0] for d in (*PROJECT["project"]["dependencies"], *extras)} - {"autofuse-torch"}
    assert wanted <= pinned
    assert "torch==2.13.0\n" in (REPOSITORY / "constraints.txt").read_text()


def test_the_readme_has_exactly_two_set_up_commands_and_each_is_complete() -> None:
    found = commands()
    assert list(found) == ["demo", "test"]
    for command in found.values():
        steps = [shlex.split(step) for step in command.split(" && ")]
        assert steps[0] == ["python3.11", "-m", "venv", ".venv"]
        assert steps[1][:4] == [".venv/bin/pip", "install", "-c", "constraints.txt"]
        assert steps[1][-1] in (".[torch]", ".[test]")
        assert all(step[0].startswith(".venv/bin/") for step in steps[1:])
    assert found["demo"].endswith(".venv/bin/autofuse demo")


def test_ci_runs_the_readmes_test_command_word_for_word(tmp_path: Path) -> None:
    # CI's script runs in an empty tree with the README, and with a `python3.11` that prints its arguments.
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text((REPOSITORY / ".ci" / "run").read_text())
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "python3.11"
    fake.write_text("#!/bin/sh\necho called with: $*\nexit 7\n")
    fake.chmod(0o755)
    run("git", "init", "-q", tmp_path)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", ".ci/run"], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == [f"+ {commands()['test']}", "called with: -m venv .venv"]
    assert done.returncode == 7
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)


@pytest.fixture(scope="module")
def wheel(tree: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built from a copy, because a build leaves folders behind."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name, content in tree.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(copy)],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("pip reaches no package index, and building needs setuptools from one")
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_every_module_rule_and_data_file(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    modules = {f.relative_to(REPOSITORY).as_posix() for f in (REPOSITORY / "autofuse").rglob("*") if f.is_file()}
    rules = {f"autofuse/rules/{f.name}" for f in (REPOSITORY / "rules").glob("*.py")}
    assert {m for m in modules if not m.endswith(".pyc")} | rules <= inside
    assert not [name for name in inside if name.startswith(("tests/", "rules/", "examples/"))]
    assert any(name.endswith("licenses/LICENSE") for name in inside)


@pytest.mark.slow
def test_the_wheel_rewrites_a_file_without_torch(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    bin_ = tmp_path / "venv" / "bin"
    done = subprocess.run(
        [bin_ / "pip", "install", "-q", "-c", REPOSITORY / "constraints.txt", wheel], capture_output=True, text=True
    )
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("pip reaches no package index")
    assert done.returncode == 0, done.stderr
    assert not re.search(r"^torch\s", run(bin_ / "pip", "list").stdout, re.MULTILINE)
    model = tmp_path / "model.py"
    model.write_text(ATTENTION)
    run(bin_ / "autofuse", "rewrite", "model.py", cwd=tmp_path)
    assert "scaled_dot_product_attention(" in model.read_text()
    assert run(bin_ / "autofuse", "--version").stdout.startswith("autofuse 0.")
    refused = subprocess.run([bin_ / "autofuse", "demo"], capture_output=True, text=True)
    assert (refused.returncode, "pip install 'torch>=2.9'" in refused.stderr) == (2, True)
