"""Packages are found without importing them, and each problem is a sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autofuse.kernels import packages
from autofuse.kernels.packages import Package, Parts, Unavailable, find_module, load_module

_RAISES = "raise RuntimeError('imported')\n"
OTHERS = [value for value in vars(packages).values() if isinstance(value, Package)]


def _write_files(folder: Path, *files: str) -> None:
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_RAISES, encoding="utf-8")


def test_a_module_at_any_depth_is_found_without_running_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_files(tmp_path, "outer_x/__init__.py", "outer_x/inner/__init__.py", "outer_x/inner/leaf.py", "single_x.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("outer_x", "outer_x.inner", "outer_x.inner.leaf", "single_x"):
        assert find_module(name) is not None
    for name in ("outer_y", "outer_x.other", "outer_x.inner.leaf.more", "single_x.more"):
        assert find_module(name) is None
    assert not {"outer_x", "outer_x.inner", "single_x"} & set(sys.modules)


def test_parts_of_namespaces_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_files(tmp_path, "one/space_x/first/__init__.py", "two/space_x/second/deep/part.py")
    monkeypatch.syspath_prepend(str(tmp_path / "one"))
    monkeypatch.syspath_prepend(str(tmp_path / "two"))
    assert find_module("space_x.first") is not None
    assert find_module("space_x.second.deep.part") is not None


def test_a_blocked_module_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_files(tmp_path, "blocked_x/__init__.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "blocked_x", None)
    assert find_module("blocked_x") is None


def test_a_finder_that_raises_an_error_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            raise ValueError(name)

    _write_files(tmp_path, "behind_x/__init__.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    assert find_module("behind_x") is not None


@pytest.mark.parametrize(
    ("package", "files", "said"),
    [
        (packages.APEX_NORMS, (), "NVIDIA apex is not installed."),
        (packages.APEX_NORMS, ("apex/__init__.py", "apex/forms.py"), "is not NVIDIA's"),
        (packages.APEX_NORMS, ("apex.py",), "is not NVIDIA's"),
        (packages.APEX_NORMS, ("apex/notes.txt",), "is not NVIDIA's"),
        (
            packages.APEX_NORMS,
            ("apex/__init__.py", "apex/normalization/__init__.py", "apex/normalization/fused_layer_norm.py"),
            "was compiled without fused_layer_norm_cuda",
        ),
        (packages.FLASH_ATTN, ("flash_attn/__init__.py",), "is not flash-attn 2"),
        (packages.FLASH_ATTN, ("flash_attn/cute/__init__.py",), "is not flash-attn 2"),
        (
            packages.FLASH_ATTN,
            ("flash_attn/__init__.py", "flash_attn/flash_attn_interface.py"),
            "flash_attn_2_cuda, is missing",
        ),
        (
            packages.FLASH_ATTN_4,
            ("flash_attn/__init__.py", "flash_attn/flash_attn_interface.py"),
            "has no part cute",
        ),
        (packages.FLASH_ATTN_4, ("flash_attn/cute/interface.py",), "nvidia-cutlass-dsl"),
        (packages.LIGER, ("liger_kernel.py",), "it is not liger-kernel"),
        (packages.QUACK, ("quack/__init__.py",), "is not quack-kernels"),
        (packages.QUACK, ("quack/rmsnorm.py",), "nvidia-cutlass-dsl"),
    ],
)
def test_problems_are_reported(
    package: Package, files: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_files(tmp_path, *files)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert package.parts is not None
    assert said in package.parts.missing()


@pytest.mark.parametrize("package", OTHERS, ids=lambda package: package.name)
def test_every_package_says_how_to_install_it_and_none_installs_the_unrelated_apex(package: Package) -> None:
    assert package.install.endswith((".", ")", "-4", "packaging", "kernels"))
    assert "pip install apex" not in package.install
    assert not package.missing() or package.missing().endswith(".")


def test_versions_come_from_the_metadata_or_are_empty() -> None:
    assert packages.TORCH.version()[0].isdigit()
    assert Parts("no-such-distribution", {"torch": ""}).version() == ""


@pytest.mark.parametrize("body", ["raise RuntimeError('no driver\\nmore')", "import sys; sys.exit(3)", "1 / 0"])
def test_a_module_that_cannot_be_imported_is_unavailable_and_tried_once(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{abs(hash(body))}"
    count = tmp_path / "count"
    (tmp_path / f"{name}.py").write_text(f"open({str(count)!r}, 'a').write('x')\n{body}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for _ in range(2):
        with pytest.raises(Unavailable, match=f"{name} cannot be imported: [A-Za-z]+: [^\n]+$"):
            load_module(name)
    assert count.read_text(encoding="utf-8") == "x"
