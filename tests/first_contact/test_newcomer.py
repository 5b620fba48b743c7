"""A newcomer follows README.md and docs/start: every command works the first time, as it is printed.

By day the environment of the tests replaces `.venv`. By night pip installs the wheel into an empty
environment, for every version of Python that is here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.first_contact.documents import Saved, section, steps_in, steps_of
from tests.first_contact.newcomer import Newcomer, interpreters, pip_variables

README_COMMANDS = "Which command is for you?"
UNMEASURED = {"AUTOFUSE_MEASURED": "0", "OMP_NUM_THREADS": "1"}
PYTHONS = interpreters() or {"python3": sys.executable}
LOWEST_AND_NEWEST = list(dict.fromkeys([min(PYTHONS), max(PYTHONS)]))


def saved(page: str, name: str) -> Saved:
    """The file of this name that a page asks to save."""
    (found,) = (s for s in steps_of(page) if isinstance(s, Saved) and s.name == name)
    return found


def follow_page_on_files(newcomer: Newcomer) -> None:
    printed = newcomer.follow(steps_of("docs/start/files.md"))
    assert "AF101 [safe]" in printed[".venv/bin/autofuse check model.py"]
    assert "+        return F.scaled_dot_product_attention(" in printed[".venv/bin/autofuse rewrite --diff model.py"]
    assert "F.scaled_dot_product_attention(" in (newcomer.folder / "model.py").read_text()


def follow_page_on_models(newcomer: Newcomer) -> None:
    printed = newcomer.follow(steps_of("docs/start/models.md"))[".venv/bin/python train.py"]
    assert re.search(r"\d+ fused", printed), printed
    losses = [float(x) for x in re.findall(r"^\d+ (\d+\.\d+)$", printed, re.MULTILINE)]
    assert len(losses) == 6 and losses[-1] < losses[0]


def follow_page_on_profiles(newcomer: Newcomer, heading: str) -> None:
    newcomer.follow(steps_in(section("docs/start/profiles.md", heading)))
    assert (newcomer.folder / "autofuse-profile" / "profile.html").read_text().startswith("<!doctype html")


def follow_readme(newcomer: Newcomer, *words: str) -> dict[str, str]:
    """Types those commands of the README that contain one of the words."""
    (newcomer.folder / "src").mkdir(exist_ok=True)
    (newcomer.folder / "src" / "model.py").write_text(saved("docs/start/files.md", "model.py").text)
    steps = steps_in(section("README.md", README_COMMANDS))
    chosen = [s for s in steps if not isinstance(s, Saved) and any(w in s.line for w in words)]
    assert len(chosen) >= len(words)
    return newcomer.follow(chosen)


def follow_page_on_hooks(newcomer: Newcomer) -> None:
    """In a repository with the model of the page on files."""
    (newcomer.folder / "model.py").write_text(saved("docs/start/files.md", "model.py").text)
    newcomer.type("git init -q && git add model.py")
    newcomer.follow(steps_in(section("docs/configuration.md", "pre-commit")))
    assert "F.scaled_dot_product_attention(" in (newcomer.folder / "model.py").read_text()
    newcomer.type("git add model.py && pre-commit run -a")  # the second run has nothing to do


def follow_page_on_rules(newcomer: Newcomer, *words: str) -> None:
    """Saves the files of the page on rules, and types those commands that contain one of the words."""
    steps = steps_of("docs/writing-rules.md")
    printed = newcomer.follow(s for s in steps if isinstance(s, Saved) or any(w in s.line for w in words))
    assert "MY103" in "".join(printed.values())


def test_the_page_on_files_works_as_printed(tmp_path: Path) -> None:
    follow_page_on_files(Newcomer(tmp_path, UNMEASURED))


def test_the_readmes_commands_for_files_and_traces_work_as_printed(tmp_path: Path, trace: Path) -> None:
    shutil.copy(trace, tmp_path)
    printed = follow_readme(Newcomer(tmp_path, UNMEASURED), "check", "rewrite", "explain", "--trace")
    assert "AF101" in printed["autofuse check src/"]


@pytest.mark.slow
def test_the_page_on_models_works_as_printed(tmp_path: Path) -> None:
    follow_page_on_models(Newcomer(tmp_path, UNMEASURED))


def test_the_readmes_lines_for_a_model_run(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", section("README.md", README_COMMANDS), re.DOTALL)
    head = "import torch\nimport autofuse\nfrom torch import nn\nmodel = nn.Sequential(nn.Linear(4, 4))\n"
    (tmp_path / "lines.py").write_text(f"{head}example_inputs = torch.randn(2, 4)\n{block}")
    assert Newcomer(tmp_path, UNMEASURED).type(".venv/bin/python lines.py")


def installing(folder: Path, wheel: Path, python: str) -> Newcomer:
    """A newcomer with an empty folder, whose `python3` is this program, and who installs the wheel."""
    programs = folder / "programs"
    programs.mkdir(parents=True)
    script = programs / "python3"
    script.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    script.chmod(0o755)
    path = f"{programs}{os.pathsep}{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return Newcomer(folder, {"PATH": path, **pip_variables(wheel)}, installs=True)


@pytest.mark.night
@pytest.mark.parametrize("python", PYTHONS)
def test_without_torch_everything_that_needs_none_works_from_the_wheel(
    python: str, tmp_path: Path, wheel: Path, trace: Path
) -> None:
    newcomer = installing(tmp_path / "home", wheel, PYTHONS[python])
    shutil.copy(trace, newcomer.folder)
    follow_page_on_files(newcomer)
    assert "torch" not in newcomer.type(".venv/bin/pip list --format freeze").replace("autofuse-torch", "")
    follow_page_on_profiles(newcomer, "A trace that you already have")
    follow_readme(newcomer, "check", "rewrite", "explain", "--trace")
    follow_page_on_hooks(newcomer)
    follow_page_on_rules(newcomer, "autofuse")
    refused = subprocess.run([newcomer.folder / ".venv/bin/autofuse", "demo"], capture_output=True, text=True)
    assert (refused.returncode, "pip install 'torch>=2.9'" in refused.stderr) == (2, True)


@pytest.mark.night
@pytest.mark.parametrize("python", LOWEST_AND_NEWEST)
def test_with_torch_a_vision_transformer_is_fused_and_profiled_from_the_wheel(
    python: str, tmp_path: Path, wheel: Path, trace: Path
) -> None:
    newcomer = installing(tmp_path / "home", wheel, PYTHONS[python])
    shutil.copy(trace, newcomer.folder)
    follow_page_on_models(newcomer)
    follow_page_on_profiles(newcomer, "A script that trains")
    follow_readme(newcomer, "profile train.py", "--trace")
    newcomer.type("autofuse compare autofuse-profile/profile.json autofuse-profile/profile.json")
    follow_page_on_rules(newcomer, "python train.py")
    newcomer.follow(steps_in(section("docs/cli.md", "`autofuse demo`")))
    assert (newcomer.folder / "autofuse-demo" / "demo.html").exists()
