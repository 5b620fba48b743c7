"""Every kernel is launched on the device of its tensors, with its number of threads for any size of a warp."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

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


def _kernel_of_all_kinds(x, other, scale, width, rows, flag: tl.constexpr, block: tl.constexpr, word: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(x + at, mask=at < width * rows) * scale
    if other is not None:
        value += tl.load(other + at, mask=at < width * rows)
    if flag:
        value += 1
    tl.store(x + at, value.to(x.dtype.element_ty), mask=at < width * rows)


MEMORY = torch.zeros(256, dtype=torch.float32)
HALVES = MEMORY.to(torch.bfloat16)
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "all by position": ((MEMORY, MEMORY, 2.0, 16, 4, True, 64, "a"), {}),
    "constants by name": ((MEMORY, MEMORY, 2.0, 16, 4), {"flag": True, "block": 64, "word": "a"}),
    "constants by name, in another order": ((MEMORY, MEMORY, 2.0, 16, 4), {"word": "a", "block": 64, "flag": True}),
    "no tensor": ((MEMORY, None, 2.0, 16, 4, True, 64, "a"), {}),
    "another dtype": ((HALVES, MEMORY, 2.0, 16, 4, True, 64, "a"), {}),
    "an address that is not aligned": ((MEMORY[1:], MEMORY, 2.0, 16, 4, True, 64, "a"), {}),
    "another aligned address": ((MEMORY[64:], MEMORY, 2.0, 16, 4, True, 64, "a"), {}),
    "another float": ((MEMORY, MEMORY, 0.5, 16, 4, True, 64, "a"), {}),
    "an integer for the float": ((MEMORY, MEMORY, 2, 16, 4, True, 64, "a"), {}),
    "one": ((MEMORY, MEMORY, 2.0, 1, 4, True, 64, "a"), {}),
    "true for one": ((MEMORY, MEMORY, 2.0, True, 4, True, 64, "a"), {}),
    "a float for one": ((MEMORY, MEMORY, 2.0, 1.0, 4, True, 64, "a"), {}),
    "no multiple of 16": ((MEMORY, MEMORY, 2.0, 17, 4, True, 64, "a"), {}),
    "64 bits": ((MEMORY, MEMORY, 2.0, 2**40, 4, True, 64, "a"), {}),
    "another flag": ((MEMORY, MEMORY, 2.0, 16, 4, False, 64, "a"), {}),
    "another block": ((MEMORY, MEMORY, 2.0, 16, 4, True, 128, "a"), {}),
    "another word": ((MEMORY, MEMORY, 2.0, 16, 4, True, 64, "b"), {}),
    "more threads": ((MEMORY, MEMORY, 2.0, 16, 4, True, 64, "a"), {"threads": 64}),
}


class Recorder:
    """Replaces the launcher of compiled kernels, and records what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []  # the grid, the stream, the kernel, and its arguments
        self.hooked: list[bool] = []  # whether hooks were passed

    def __call__(self, source: Any, metadata: Any) -> Any:
        def run(x: int, y: int, z: int, stream: Any, function: Any, packed: Any, _: Any, *rest: Any) -> None:
            enter, _, *arguments = rest
            values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
            self.calls.append((x, y, z, stream, function, packed, *values))
            self.hooked.append(bool(getattr(enter, "calls", ())))

        return run


@pytest.fixture
def recorder(absent_gpus: Absent, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(Absent, "launcher_cls", made)
    monkeypatch.setattr(launcher, "_COMPILED", {})
    return made


def _launch(kernel: Any, name: str) -> None:
    arguments, named = CALLS[name]
    launch(kernel, (3, 2), *arguments, **{"threads": 32, **named})


def test_a_remembered_launch_passes_what_triton_passes_whatever_was_launched_before(recorder: Recorder) -> None:
    """Triton's own launches come first. Then each kind is launched twice, among all others."""
    kernel = JITFunction(_kernel_of_all_kinds)
    for arguments, named in CALLS.values():
        options = {"num_warps": named.get("threads", 32) // 32} | {k: v for k, v in named.items() if k != "threads"}
        kernel[(3, 2)](*arguments, **options)
    by_triton = dict(zip(CALLS, recorder.calls, strict=True))
    for _ in range(2):
        for name in CALLS:
            recorder.calls.clear()
            _launch(kernel, name)
            assert recorder.calls == [by_triton[name]], name
    assert len(launcher._COMPILED) == len(CALLS) - 1  # one has another address and nothing else


def test_a_second_launch_skips_tritons_search(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = JITFunction(_kernel_of_all_kinds)
    _launch(kernel, "no tensor")
    monkeypatch.setattr(JITFunction, "run", lambda *_, **__: pytest.fail("Triton searched."))
    _launch(kernel, "no tensor")
    assert len(recorder.calls) == 2
    kernel.pre_run_hooks.append(lambda *_, **__: None)
    with pytest.raises(pytest.fail.Exception):
        _launch(kernel, "no tensor")


def test_hooks_of_a_profiler_see_remembered_launches_too(recorder: Recorder) -> None:
    kernel, seen = JITFunction(_kernel_of_all_kinds), list[Any]()
    _launch(kernel, "no tensor")
    enter = triton.knobs.runtime.launch_enter_hook
    enter.add(seen.append)
    try:
        _launch(kernel, "no tensor")
    finally:
        enter.remove(seen.append)
    _launch(kernel, "no tensor")
    assert recorder.hooked == [False, True, False]


@pytest.mark.parametrize("arch", [a for a in TARGETS if isinstance(a, str)])
def test_on_an_amd_gpu_triton_searches_each_time(
    recorder: Recorder, absent_gpus: Absent, monkeypatch: pytest.MonkeyPatch, arch: Any
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    absent_gpus.target = TARGETS[arch].gpu
    absent_gpus.elsewhere = absent_gpus.current = 1000 + list(TARGETS).index(arch)
    launcher._OPTIONS.clear()
    assert launcher.block_memory(torch.empty(1)) == 0
    compiled = SimpleNamespace()
    launcher._remember((), JITFunction(_kernel_of_all_kinds), compiled, *CALLS["no tensor"], absent_gpus)
    assert not launcher._COMPILED


def test_a_float_as_a_constant_is_not_remembered(recorder: Recorder, absent_gpus: Absent) -> None:
    """0.0 and -0.0 are equal as keys."""
    given = (MEMORY, MEMORY, 2.0, 16, 4, 0.0, 64, "a")
    launcher._remember((), JITFunction(_kernel_of_all_kinds), SimpleNamespace(), given, {}, absent_gpus)
    assert not launcher._COMPILED


def test_the_memory_of_launches_is_bounded(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_REMEMBERED", 2)
    kernel = JITFunction(_kernel_of_all_kinds)
    for width in (16, 32, 48):
        launch(kernel, (1,), MEMORY, None, 2.0, width, 4, True, 64, "a", threads=32)
    assert len(launcher._COMPILED) == 1


@pytest.mark.parametrize("arch", [a for a in TARGETS if isinstance(a, int)])
def test_the_shared_memory_is_that_of_the_device(
    absent_gpus: Absent, monkeypatch: pytest.MonkeyPatch, arch: int
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    absent_gpus.target = TARGETS[arch].gpu
    launcher._block_memory.cache_clear()
    assert launcher.block_memory(X) == TARGETS[arch].block_shared


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
