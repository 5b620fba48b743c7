"""The matrix of Triton's versions and targets: what it compiles again, what it caches, and the page that it writes."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from tools.ahead import matrix as made_by
from tools.ahead.matrix import TRITON_OF_TORCH, VERSIONS, digest, matrix, stems
from tools.ahead.matrix_page import page
from tools.ahead.targets import TARGETS, arch_of

REPOSITORY = Path(__file__).parents[3]


def row(file: str, arch: Any, registers: int = 40, trouble: str = "") -> dict[str, Any]:
    resources = {"registers": registers, "local": 0, "shared": 0, "warps": 4}
    launch = {"kernel": "_forward", "resources": resources}
    return {"file": file, "label": "a call", "arch": arch, "launch": launch, "trouble": trouble}


@pytest.fixture
def compiled_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, list[str]]]:
    """Records what would be compiled, and compiles nothing."""
    calls: list[tuple[str, Any, list[str]]] = []

    def compile_version(triton: Path, arch: Any, stems: list[str]) -> list[dict[str, Any]]:
        calls.append((triton.name, arch, stems))
        return [row(stem, arch) for stem in stems]

    monkeypatch.setattr(made_by, "_compile_with", compile_version)
    monkeypatch.setattr(made_by, "install_version", lambda home, version: home / f"triton-{version}")
    return calls


def test_unchanged_files_are_not_compiled_again(compiled_calls: list[Any], tmp_path: Path) -> None:
    first = matrix(tmp_path, ["3.7.1"], [90, "gfx942"])
    assert compiled_calls == [("triton-3.7.1", 90, stems()), ("triton-3.7.1", "gfx942", stems())]
    assert matrix(tmp_path, ["3.7.1"], [90, "gfx942"]) == first and len(compiled_calls) == 2
    matrix(tmp_path, ["3.6.0"], [90])
    assert compiled_calls[2:] == [("triton-3.6.0", 90, stems())]


def test_only_a_changed_file_is_compiled(
    compiled_calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix(tmp_path, ["3.7.1"], [90])
    usual = digest
    monkeypatch.setattr(made_by, "digest", lambda stem, *rest: usual(stem, *rest) + "x" * (stem == "rotary"))
    matrix(tmp_path, ["3.7.1"], [90])
    assert compiled_calls[1:] == [("triton-3.7.1", 90, ["rotary"])]


def test_a_digest_depends_on_the_imports_of_a_file() -> None:
    imported = {p.relative_to(REPOSITORY).as_posix() for p in made_by._with_its_imports(made_by.KERNELS / "gated.py")}
    assert {f"autofuse/kernels/triton/{name}.py" for name in ("gated", "activations", "launch", "rows")} <= imported
    assert "autofuse/kernels/triton/norm.py" not in imported and "autofuse/kernels/devices.py" in imported
    assert len({digest(stem, "3.7.1", arch) for stem in stems() for arch in TARGETS}) == len(stems()) * len(TARGETS)


def test_every_file_that_declares_calls_is_compiled() -> None:
    declaring = [p.stem for p in made_by.KERNELS.glob("*.py") if p.stem != "__init__"]
    modules = {stem: importlib.import_module(f"autofuse.kernels.triton.{stem}") for stem in declaring}
    assert set(stems()) >= {stem for stem, module in modules.items() if getattr(module, "AHEAD", ())}


def test_the_versions_include_that_of_the_lowest_torch() -> None:
    lowest = re.search(r'"torch>=([\d.]+)"', (REPOSITORY / "pyproject.toml").read_text())
    assert lowest is not None and TRITON_OF_TORCH[lowest.group(1)] in VERSIONS


def test_the_page_has_a_line_for_each_version_and_each_kernel() -> None:
    found = {"3.5.1": [row("norm", 90, 255, "It spills.")], "3.7.1": [row("norm", 90), row("norm", "gfx942")]}
    text = page(found, [90, 100, "gfx942"][:1])
    assert "| 2.9 | 3.5.1 | 1, 255 registers, 1 in trouble |" in text
    assert "| 2.13 | 3.7.1 | 1, 40 registers |" in text
    assert "| norm | a call | _forward | 40 / 12 |" in text
    assert "None of these numbers was measured" in text


def test_the_page_of_the_repository_has_every_version_target_and_declared_call() -> None:
    text = (REPOSITORY / "docs" / "kernel-targets.md").read_text()
    for name in (*VERSIONS, *TRITON_OF_TORCH, *(t.name for t in TARGETS.values())):
        assert name in text
    for stem in stems():
        for entry in importlib.import_module(f"autofuse.kernels.triton.{stem}").AHEAD:
            assert f"| {stem} | {entry.label} |" in text, (
                "python -m tools.ahead --matrix --output docs/kernel-targets.md"
            )


@pytest.mark.parametrize(("text", "arch"), [("90", 90), ("sm_120", 120), ("gfx942", "gfx942")])
def test_targets_are_named_as_triton_names_them(text: str, arch: Any) -> None:
    assert arch_of(text) == arch


def test_an_unknown_target_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"sm_75 is no target\. There are sm_80, sm_86"):
        arch_of("sm_75")
