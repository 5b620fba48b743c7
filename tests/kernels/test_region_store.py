"""A compiled region is loaded from the disk if it is intact, and gives the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from autofuse.kernels import packages, region_compiler, region_store
from autofuse.kernels.compiled import mlp
from autofuse.kernels.compiled_regions import CompiledRegion

pytestmark = pytest.mark.skipif(bool(packages.COMPILER.missing()), reason="needs a C++ compiler")

ARGS = (torch.randn(40, 8), torch.randn(16, 8), torch.randn(16), torch.randn(8, 16), None, "gelu_tanh")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder in which one region is stored."""
    with pytest.MonkeyPatch.context() as patch:
        here = tmp_path_factory.mktemp("cache")
        patch.setenv("AUTOFUSE_CACHE_DIR", str(here))
        region_store.forget()
        fresh()(*ARGS)
        yield here
    region_store.forget()


def fresh() -> CompiledRegion:
    """A region as in a new process, with the name of autofuse's own."""
    return CompiledRegion(mlp.forward_alone.function, frozenset({"x"}))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    compiled: list[str] = []

    def refuse(function: object, *_: object) -> None:
        compiled.append(str(function))
        raise RuntimeError("nothing is compiled here")

    monkeypatch.setattr(region_compiler, "_compile", refuse)
    monkeypatch.setattr(packages, "_given_up", {})
    region_store.forget()
    return compiled


def test_a_region_is_loaded_and_not_compiled(folder: Path, no_compiler: list[str]) -> None:
    expected = mlp.forward_alone.function(*ARGS)
    torch.testing.assert_close(fresh()(*ARGS), expected)
    torch.testing.assert_close(fresh()(ARGS[0][:33], *ARGS[1:]), expected[:33])
    assert no_compiler == []


@pytest.mark.parametrize("other", [
    (torch.randn(40, 8, dtype=torch.float64), *(a.double() if isinstance(a, torch.Tensor) else a for a in ARGS[1:])),
    (*ARGS[:5], "relu"),
    (ARGS[0], torch.randn(32, 8), torch.randn(32), torch.randn(8, 32), None, "gelu_tanh"),
], ids=["another dtype", "another plain value", "other sizes"])  # fmt: skip
def test_another_call_is_compiled(folder: Path, no_compiler: list[str], other: tuple[object, ...]) -> None:
    torch.testing.assert_close(fresh()(*other), mlp.forward_alone.function(*other))
    assert no_compiler


@pytest.mark.parametrize("damage", [b"", b"\x7fELF and nothing more"])
def test_a_damaged_library_counts_as_absent(folder: Path, no_compiler: list[str], damage: bytes) -> None:
    for path in folder.glob("*.so"):
        before = path.read_bytes()
        _put(path, damage)  # a library that is loaded must not change in its place
        try:
            torch.testing.assert_close(fresh()(*ARGS), mlp.forward_alone.function(*ARGS))
        finally:
            _put(path, before)
    assert no_compiler


def _put(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def test_a_function_of_another_package_is_not_stored() -> None:
    assert region_store.place_of(lambda x: x, [torch.ones(2)], "key").name == ""
