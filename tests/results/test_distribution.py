"""The distribution is called autofuse-torch; the unrelated package `autofuse` and an old torch are recognised."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import autofuse
from autofuse.results.distribution import DISTRIBUTION, INSTALL_TORCH, TORCH_REQUIREMENT, own_version

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
TEXTS = (".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".js", ".json", ".ipynb", ".cff", ".txt")
# `pip install` of the bare name, or of the bare name with extras: that is the unrelated package.
WRONG = re.compile(
    r"(?:pip|uv|pipx|poetry|conda)\S* (?:install|add)[^\n`]*?['\"\s]autofuse"
    r"(?:\[[\w,]+\])?(?:[=<>~!][^\s'\"`]*)?(?=['\"\s`]|$)"
)


def test_the_name_and_the_oldest_torch_are_those_of_pyproject() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert TORCH_REQUIREMENT in PROJECT["optional-dependencies"]["torch"]
    assert TORCH_REQUIREMENT in INSTALL_TORCH
    assert own_version() == PROJECT["version"] == autofuse.__version__


@pytest.mark.parametrize(
    "text",
    [
        "pip install autofuse",
        "pip install 'autofuse[torch]'",
        "python -m pip install -U autofuse==0.1.0",
        "uv add autofuse",
    ],
)
def test_the_search_finds_the_wrong_name(text: str) -> None:
    assert WRONG.search(text)


@pytest.mark.parametrize(
    "text", ["pip install autofuse-torch", "pip install 'autofuse-torch[torch]'", "pip uninstall autofuse"]
)
def test_the_search_leaves_the_right_name(text: str) -> None:
    assert not WRONG.search(text)


def test_no_text_says_to_install_the_unrelated_package() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True)
    paths = listed.stdout.splitlines() if listed.returncode == 0 else [
        str(p.relative_to(REPOSITORY)) for p in REPOSITORY.rglob("*") if ".venv" not in p.parts
    ]  # fmt: skip
    checked = [p for p in paths if p.endswith(TEXTS) and p != "tests/results/test_distribution.py"]
    found = [
        p for p in checked if (REPOSITORY / p).is_file() and WRONG.search((REPOSITORY / p).read_text(errors="ignore"))
    ]
    assert checked and found == []


def _with_distribution(folder: Path, name: str, version: str) -> None:
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` with `folder` before all installed packages."""
    lines = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(REPOSITORY)!r}]\n{code}"
    return subprocess.run([sys.executable, "-P", "-c", lines], capture_output=True, text=True)


def test_the_command_line_names_the_unrelated_package_and_works(tmp_path: Path) -> None:
    _with_distribution(tmp_path, "autofuse", "0.1.0")
    (tmp_path / "model.py").write_text("import torch\n")
    done = _python(
        tmp_path, f"from autofuse.cli import main; sys.exit(main(['check', {str(tmp_path / 'model.py')!r}]))"
    )
    assert done.returncode == 0, done.stderr
    assert "autofuse` 0.1.0 is installed" in done.stderr and "pip uninstall autofuse" in done.stderr


def test_the_import_warns_of_the_unrelated_package(tmp_path: Path) -> None:
    _with_distribution(tmp_path, "autofuse", "0.1.0")
    done = _python(tmp_path, "import autofuse; autofuse.Rule")
    assert done.returncode == 0 and "unrelated package" in done.stderr


def test_an_old_torch_is_named_in_one_sentence(tmp_path: Path) -> None:
    _with_distribution(tmp_path, "torch", "2.8.0+cpu")
    done = _python(tmp_path, "import autofuse\ntry: autofuse.optimize\nexcept ImportError as error: print(error)")
    assert "needs torch 2.9 or newer, but torch 2.8.0+cpu is installed" in done.stdout
    command = _python(tmp_path, "from autofuse.cli import main; sys.exit(main(['demo']))")
    assert command.returncode == 2 and "torch>=2.9" in command.stderr
    operations = _python(tmp_path, "import autofuse.ops")
    assert operations.returncode == 1 and operations.stderr.splitlines()[-1].startswith(
        "ImportError: autofuse needs torch"
    )


@pytest.mark.parametrize("version", ["2.9.0", "2.13.0+cu130", "3.0.0a0+git1", "unknown"])
def test_a_supported_or_unknown_torch_is_not_refused(tmp_path: Path, version: str) -> None:
    _with_distribution(tmp_path, "torch", version)
    done = _python(
        tmp_path, "from autofuse.results.distribution import unsupported_torch; print(repr(unsupported_torch()))"
    )
    assert done.stdout.strip() == "''"


def test_the_search_for_the_unrelated_package_does_not_import_the_reader_of_metadata() -> None:
    code = "import sys; from autofuse.results.distribution import name_clash; name_clash(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "importlib.metadata" not in done.stdout.split()
