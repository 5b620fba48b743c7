"""Counters from DCGM, read from a stand-in that prints what DCGM's tool prints."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from autofuse.profiling.live.dcgm import FIELDS, Counters, gpu_numbers

UUID = "GPU-5f2a7c1e-0b3d-4e6f-8a9b-1c2d3e4f5a6b"
LISTING = f"""\
2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA H200                                                    |
|        | PCI Bus ID: 00000000:19:00.0                                         |
|        | Device UUID: GPU-00000000-0000-0000-0000-000000000000                |
+--------+----------------------------------------------------------------------+
| 1      | Name: NVIDIA H200                                                    |
|        | PCI Bus ID: 00000000:3B:00.0                                         |
|        | Device UUID: {UUID}                |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
"""
# The first row is of the time before the block; the means of the others are 0.5, 0.2, 0.4, 0.3, 0, 0.1 and none.
ROWS = """\
#Entity   SMACT        SMOCC        TENSO        DRAMA        FP64A        FP32A        FP16A
ID
GPU 1     0.999        0.999        0.999        0.999        0.999        0.999        N/A
GPU 1     0.400        0.100        0.300        0.300        0.000        0.100        N/A
#Entity   SMACT        SMOCC        TENSO        DRAMA        FP64A        FP32A        FP16A
GPU 1     0.600        0.300        0.500        N/A          0.000        0.100        N/A
"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, rows: str = ROWS, fails: str = "") -> None:
    """A dcgmi on PATH that lists two GPUs and prints these rows for the second."""
    tool = folder / "dcgmi"
    refuse = f"printf '%s\\n' '{fails}'\nexit 1\n" if fails else ""
    tool.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = discovery ]; then\n{refuse}cat <<"EOF"\n{LISTING}EOF\nexit 0\nfi\n'
        f'[ "$1 $2 $3 $4 $5 $6 $7" = "dmon -i 1 -e {",".join(map(str, FIELDS))} -d 100" ] || exit 3\n'
        f'cat <<"EOF"\n{rows}EOF\ntouch {folder}/printed\nexec sleep 30\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def until_printed(folder: Path) -> None:
    """Waits, as steps that take long enough."""
    late = time.monotonic() + 20
    while not (folder / "printed").exists() and time.monotonic() < late:
        time.sleep(0.01)


def test_fields_are_means_of_the_readings_in_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch)
    with Counters(UUID.removeprefix("GPU-")) as counters:
        until_printed(tmp_path)
    levels = counters.levels()
    assert [level.value for level in levels.values()][:6] == pytest.approx([0.5, 0.2, 0.4, 0.3, 0, 0.1])
    assert "no value of field 1008 on this GPU" in levels["fp16_active"].reason
    assert levels["sm_active"].basis == "DCGM field 1002, 2 readings 100 ms apart"


def test_without_the_tool_every_level_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with Counters(UUID) as counters:
        pass
    levels = counters.levels()
    assert set(levels) == set(FIELDS.values())
    assert all(
        level.value is None and "dcgmi is not on this machine's PATH" in level.reason for level in levels.values()
    )


def test_a_refusal_of_the_tool_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(
        tmp_path, monkeypatch, fails="Error: Unable to connect to host engine. Host engine is probably not running."
    )
    with Counters(UUID) as counters:
        pass
    assert "dcgmi refused: Error: Unable to connect to host engine" in counters.levels()["sm_active"].reason


def test_a_gpu_that_dcgm_does_not_know_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch)
    with Counters("GPU-ffffffff-0000-0000-0000-000000000000") as counters:
        pass
    assert "DCGM does not know the GPU GPU-ffffffff" in counters.reason


def test_a_block_shorter_than_two_readings_has_no_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, rows="\n".join(ROWS.splitlines()[:3]) + "\n")
    with Counters(UUID) as counters:
        until_printed(tmp_path)
    assert "took less than" in counters.levels()["sm_active"].reason


def test_numbers_are_dcgms_own() -> None:
    assert gpu_numbers(LISTING)[UUID] == 1
