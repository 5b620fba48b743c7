"""Every Triton kernel is compiled for GPUs that are not here and keeps to its bounds; and the gate itself notices.

The gate runs in a process of its own: in this one Triton may be set to interpret.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autofuse.kernels.ahead_of_time import Ahead, sample
from tools.ahead.gate import ARCHITECTURES, trouble
from tools.ahead.launches import Launch
from tools.ahead.resources import Resources

pytest.importorskip("triton")
REPOSITORY = Path(__file__).parents[2]
KERNELS = REPOSITORY / "autofuse" / "kernels" / "triton"
BY_DAY = 90  # the default run compiles for one architecture, the night for all


def gate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "tools.ahead", *(str(a) for a in arguments)]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """The gate's verdict on tests/kernels/ahead/."""
    file = tmp_path_factory.mktemp("gate") / "rows.json"
    folder = REPOSITORY / "tests" / "kernels" / "ahead"
    done = gate("--folder", folder, "--arch", "90", "--quick", "--sass", "--json", file)
    return done, json.loads(file.read_text())["rows"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arch", [pytest.param(a, marks=[pytest.mark.night] if a != BY_DAY else []) for a in ARCHITECTURES]
)
def test_every_kernel_is_within_its_bounds_on_every_architecture(arch: Any) -> None:
    """By day with its machine code; by night that of every call is judged (tests/tools/ahead/test_sass_gate.py)."""
    done = gate("--quick", "--arch", str(arch), *(["--sass"] if arch == BY_DAY else []))
    assert done.returncode == 0, done.stderr


def test_a_kernel_that_spills_is_reported_with_the_bytes_and_advice(verdict: Any) -> None:
    done, rows = verdict
    assert done.returncode == 1
    spilled = [row for row in rows if row["launch"]["resources"]["local"]]
    assert [row["label"] for row in spilled] == ["4096 in one warp"]
    assert "columns, 4096 in one warp, sm_90: It spills: a thread keeps" in done.stderr
    assert "Use a smaller block or more warps." in done.stderr


def test_a_kernel_within_its_bounds_is_not_reported(verdict: Any) -> None:
    done, rows = verdict
    row = next(row for row in rows if row["label"] == "4096 in 16 warps")
    assert row["trouble"] == "" and row["occupancy"] >= 0.25 and row["launch"]["resources"]["registers"] > 0
    assert "4096 in 16 warps" not in done.stderr


def test_a_declared_occupancy_is_checked(verdict: Any) -> None:
    done, rows = verdict
    row = next(row for row in rows if row["label"].startswith("2048"))
    assert row["occupancy"] < 1.0
    assert f"Its occupancy is {row['occupancy']:.3f}" in done.stderr and "1.0 was promised" in done.stderr


def test_a_kernel_that_no_entry_launches_is_reported_and_a_helper_is_not(verdict: Any) -> None:
    done, _ = verdict
    assert "spilling.forgotten is not declared" in done.stderr
    assert "_larger" not in done.stderr


def test_a_kernel_that_is_launched_on_the_current_device_is_reported(verdict: Any) -> None:
    done, rows = verdict
    assert "unguarded.copied, 8192 in 8 warps, sm_90: It is launched on the current device" in done.stderr
    assert {row["file"] for row in rows if not row["launch"]["guarded"]} == {"unguarded"}


@pytest.mark.night
def test_a_block_of_32_warps_is_too_large_if_a_warp_has_64_threads(verdict: Any) -> None:
    folder = REPOSITORY / "tests" / "kernels" / "ahead"
    done = gate("--folder", folder, "--only", "unguarded", "overflowing", "--arch", "gfx942")
    assert "8192 in 32 warps, gfx942: Its blocks have 2048 threads, and a block may have 1024" in done.stderr
    assert "overflowing.by_row, by row, gfx942: It computes addresses in 32 bits" in done.stderr
    _, rows = verdict
    (on_nvidia,) = (row for row in rows if row["label"] == "8192 in 32 warps")
    assert "threads" not in on_nvidia["trouble"]


def test_too_many_threads_of_a_block_are_reported() -> None:
    used = Resources(registers=32, local=0, shared=0, warps=32)
    launch = Launch("kernel", "", used)
    assert trouble(Ahead("a call", lambda: None), launch, 90) == ""
    assert "Its blocks have 2048 threads, and a block may have 1024" in trouble(
        Ahead("a call", lambda: None), launch, "gfx942"
    )


def test_loads_of_two_bytes_and_divisions_in_64_bits_are_reported(verdict: Any) -> None:
    done, _ = verdict
    assert "narrow, 4100, as Triton sees it, doubled, sm_90, 1: Its loads and stores move 2.0 bytes" in done.stderr
    assert "narrow, divided in 64 bits, divided, sm_90, 1: It divides numbers of 64 bits in 1 places" in done.stderr
    assert "4100, in units" in done.stdout and "4100, in units" not in done.stderr and "narrow, 4096" not in done.stderr


@pytest.mark.parametrize("kernel", ["by_row, by row", "by_block, by block", "by_loop, by loop", "too_late, too late"])
def test_addresses_in_32_bits_are_reported(verdict: Any, kernel: str) -> None:
    done, _ = verdict
    assert f"overflowing.{kernel}, sm_90: It computes addresses in 32 bits" in done.stderr
    assert "in_time" not in done.stderr


def test_entries_that_are_not_quick_run_for_the_whole_table_only(verdict: Any) -> None:
    _, rows = verdict
    assert {row["label"] for row in rows if row["file"] == "spilling"} == {
        "4096 in 16 warps",
        "4096 in one warp",
        "2048 in 8 warps, all of it",
    }


def test_the_gate_refuses_interpreted_kernels() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.ahead"],
        cwd=REPOSITORY, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "unset it" in done.stderr


@pytest.mark.parametrize(
    ("used", "arch", "expected"),
    [
        (Resources(registers=32, local=0, shared=0, warps=8), 90, 1.0),
        (Resources(registers=128, local=0, shared=0, warps=8), 80, 0.25),
        (Resources(registers=255, local=0, shared=0, warps=8), 100, 0.125),
        (Resources(registers=32, local=0, shared=100 * 1024, warps=4), 80, 1 / 16),
        (Resources(registers=32, local=0, shared=100 * 1024, warps=4), 90, 2 / 16),
        (Resources(registers=32, local=0, shared=200 * 1024, warps=4), 80, 0.0),
        (Resources(registers=16, local=0, shared=0, warps=1), 90, 0.5),
        (Resources(registers=32, local=0, shared=0, warps=32), 80, 1.0),
        (Resources(registers=32, local=0, shared=0, warps=32), 86, 32 / 48),  # 48 warps: one such block
        (Resources(registers=32, local=0, shared=0, warps=8), 89, 1.0),
        (Resources(registers=40, local=0, shared=0, warps=8), 120, 1.0),
        (Resources(registers=48, local=0, shared=0, warps=16), 120, 32 / 48),
        (Resources(registers=16, local=0, shared=0, warps=1), 86, 16 / 48),
        (Resources(registers=16, local=0, shared=0, warps=1), 89, 24 / 48),
        (Resources(registers=32, local=0, shared=60 * 1024, warps=4), 89, 4 / 48),
        (Resources(registers=84, local=0, shared=0, warps=16), 90, 16 / 64),  # 2816 a warp: 20 warps by registers
        (Resources(registers=64, local=0, shared=0, warps=16), 90, 32 / 64),
        (Resources(registers=64, local=0, shared=0, warps=4), "gfx942", 1.0),
        (Resources(registers=128, local=0, shared=0, warps=4), "gfx90a", 0.5),
        (Resources(registers=128, local=0, shared=0, warps=16), "gfx942", 0.5),
        (Resources(registers=32, local=0, shared=40 * 1024, warps=4), "gfx942", 4 / 32),
    ],
)
def test_occupancy_equals_that_of_nvidias_calculator(used: Resources, arch: Any, expected: float) -> None:
    assert used.occupancy(arch) == expected


def test_a_sample_has_a_shape_and_a_type_and_no_data() -> None:
    x = sample(8192, 4096)
    assert x.shape == (8192, 4096) and str(x.dtype) == "torch.bfloat16" and x.is_meta


def test_the_default_occupancy_is_a_quarter_of_the_warps() -> None:
    entry = Ahead("nothing", lambda: None)
    assert entry.occupancy == 0.25 and entry.quick
