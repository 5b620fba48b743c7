"""Every kernel is launched on the device of its tensors, with its number of threads for any size of a warp."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from autofuse.kernels.devices import index_of, multiprocessors, treat_meta_as
from autofuse.kernels.triton import launch as launcher
from autofuse.kernels.triton.launch import DoesNotCompile, launch, rehearsing
from tests.kernels.triton.standing_in import Kernel, two_devices
from tools.ahead.absent import Absent
from tools.ahead.targets import TARGETS

PACKAGE = Path(__file__).parents[3] / "autofuse"


@pytest.fixture
def absent_gpus() -> Iterator[Absent]:
    with two_devices() as driver:
        yield driver


X = torch.empty(4, device="meta")


def test_a_launch_enters_the_device_of_its_first_tensor_and_leaves_it(absent_gpus: Absent) -> None:
    kernel = Kernel(absent_gpus)
    launch(kernel, (1,), X, 2, threads=128)
    assert [device for device, _, _ in kernel.launched] == [absent_gpus.home]
    assert absent_gpus.current == absent_gpus.elsewhere


def test_a_launch_that_raises_leaves_the_device_too(absent_gpus: Absent) -> None:
    with pytest.raises(ValueError, match="no memory"):
        launch(Kernel(absent_gpus, ValueError("no memory")), (1,), X, threads=128)
    assert absent_gpus.current == absent_gpus.elsewhere


def test_the_current_device_is_not_entered_again(absent_gpus: Absent, monkeypatch: pytest.MonkeyPatch) -> None:
    absent_gpus.current = absent_gpus.home
    monkeypatch.setattr(torch.cuda, "device", lambda index: pytest.fail("A device was entered."))
    kernel = Kernel(absent_gpus)
    launch(kernel, (1,), X, threads=128)
    assert [device for device, _, _ in kernel.launched] == [absent_gpus.home]


def test_a_tensor_of_no_accelerator_stays_on_the_current_device(absent_gpus: Absent) -> None:
    kernel = Kernel(absent_gpus)
    launch(kernel, (1,), torch.empty(4), threads=128)
    assert [device for device, _, _ in kernel.launched] == [absent_gpus.elsewhere]


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("threads", [32, 64, 256, 1024])
def test_the_number_of_threads_is_equal_on_every_target(absent_gpus: Absent, arch: Any, threads: int) -> None:
    absent_gpus.target = TARGETS[arch].gpu
    kernel = Kernel(absent_gpus)
    launcher._OPTIONS.clear()
    launch(kernel, (1,), X, threads=threads)
    ((_, _, named),) = kernel.launched
    assert named["num_warps"] * absent_gpus.target.warp_size == max(threads, absent_gpus.target.warp_size)


@pytest.mark.parametrize("arch", TARGETS)
def test_registers_are_limited_on_nvidia_only(absent_gpus: Absent, arch: Any) -> None:
    absent_gpus.target = TARGETS[arch].gpu
    kernel = Kernel(absent_gpus)
    launcher._OPTIONS.clear()
    launch(kernel, (1,), X, threads=512, registers=64)
    ((_, _, named),) = kernel.launched
    assert named.get("maxnreg") == (64 if absent_gpus.target.backend == "cuda" else None)


def test_a_rehearsal_compiles_on_that_device_and_launches_nothing(absent_gpus: Absent) -> None:
    kernel = Kernel(absent_gpus)
    with rehearsing() as compiled:
        launch(kernel, (1,), X, threads=128)
    assert compiled == ["kernel"]
    assert [(device, warmup) for device, warmup, _ in kernel.launched] == [(absent_gpus.home, True)]


def test_a_rehearsal_names_the_kernel_that_does_not_compile(absent_gpus: Absent) -> None:
    kernel = Kernel(absent_gpus, TypeError("a long story\nunexpected keyword"))
    with rehearsing(), pytest.raises(DoesNotCompile, match="kernel: TypeError: unexpected keyword"):
        launch(kernel, (1,), X, threads=128)


def test_a_stand_in_has_the_properties_of_its_device() -> None:
    meta = torch.device("meta")
    assert index_of(X) is None and multiprocessors(meta) == 132
    with treat_meta_as(torch.device("cuda", 5)):
        assert index_of(X) == 5 and index_of(torch.empty(1)) is None
        with treat_meta_as(torch.device("cuda", 6)):
            assert index_of(X) == 6
        assert index_of(X) == 5
    assert index_of(X) is None


def _launches(path: Path) -> list[int]:
    """Lines with `kernel[grid](...)`, `.run(..., grid=...)` or `.warmup(...)`."""
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    found = []
    for call in calls:
        named = {k.arg for k in call.keywords}
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method == "warmup" or method == "run" and "grid" in named or isinstance(call.func, ast.Subscript):
            found.append(call.lineno)
    return found


@pytest.mark.parametrize("path", sorted((PACKAGE / "kernels" / "triton").glob("*.py")), ids=lambda p: p.stem)
def test_only_the_launcher_launches_kernels(path: Path) -> None:
    assert bool(_launches(path)) == (path.stem == "launch")


def test_no_other_folder_imports_triton() -> None:
    """So that no kernel can be launched elsewhere."""
    importers = [p for p in PACKAGE.rglob("*.py") if "@triton.jit" in p.read_text()]
    assert importers and {p.parent for p in importers} == {PACKAGE / "kernels" / "triton"}
