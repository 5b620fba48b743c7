"""The hooks, installed and run by pre-commit in a small repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autofuse.cli import main

REPOSITORY = Path(__file__).parents[1]
ATTENTION = """\
import torch


def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v
"""


def git(*arguments: str, cwd: Path) -> str:
    identity = ("-c", "user.name=tester", "-c", "user.email=tester@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout


def commit(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    git("init", "-q", cwd=folder)
    git("add", "--force", ".", cwd=folder)
    git("commit", "-q", "-m", "start", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def hooks(tree: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree as a repository from which hooks can be installed, uncommitted files included."""
    folder = tmp_path_factory.mktemp("hooks") / "autofuse"
    folder.mkdir()
    return commit(folder, tree)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return commit(tmp_path, {"model.py": ATTENTION.encode(), "plain.py": b"x = 1\n", "readme.md": b"softmax\n"})


def run_hook(hooks: Path, hook: str, project: Path) -> subprocess.CompletedProcess[str]:
    """The hook in a project that asks for it; both share an environment, which takes its time to be installed."""
    config = hooks.parent / f"{hook}.yaml"
    revision = git("rev-parse", "HEAD", cwd=hooks).strip()
    asked = {"repos": [{"repo": str(hooks), "rev": revision, "hooks": [{"id": hook}]}]}
    config.write_text(yaml.safe_dump(asked))
    command = [sys.executable, "-m", "pre_commit", "run", "--config", str(config), "--all-files", "--verbose"]
    environment = {**os.environ, "PRE_COMMIT_HOME": str(hooks.parent / "pre-commit")}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    if "No matching distribution" in done.stdout + done.stderr:
        pytest.skip("pip reaches no package index, and a hook's environment is installed from one")
    return done


def test_both_hooks_run_one_process_on_python_files_and_notebooks() -> None:
    described = yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text())
    assert [hook["id"] for hook in described] == ["autofuse-check", "autofuse-rewrite"]
    for hook in described:
        assert (hook["language"], hook["types_or"], hook["require_serial"]) == ("python", ["python", "jupyter"], True)
        assert "additional_dependencies" not in hook


@pytest.mark.slow
def test_the_check_hook_fails_on_a_finding_and_changes_nothing(hooks: Path, project: Path) -> None:
    done = run_hook(hooks, "autofuse-check", project)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "model.py:5:" in done.stdout and "AF101" in done.stdout
    assert git("status", "--porcelain", cwd=project) == ""


@pytest.mark.slow
def test_the_rewrite_hook_rewrites_and_leaves_nothing_to_do(hooks: Path, project: Path) -> None:
    done = run_hook(hooks, "autofuse-rewrite", project)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "files were modified by this hook" in done.stdout
    assert git("status", "--porcelain", cwd=project).split() == ["M", "model.py"]
    assert "scaled_dot_product_attention(" in (project / "model.py").read_text()
    assert main(["rewrite", "--check", str(project / "model.py")]) == 0
