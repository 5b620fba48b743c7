"""Exports of Nsight Systems, created here with the tables of its schema reference."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from autofuse.profiling.trace.inputs.nsight_systems import traces_of_nsight_systems
from autofuse.profiling.trace.profile import profile_of_traces
from autofuse.profiling.trace.trace import Unreadable

TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, contextId INT, streamId INT,
    correlationId INT, globalPid INT, demangledName INT, shortName INT, gridX INT, gridY INT, gridZ INT, blockX INT,
    blockY INT, blockZ INT, registersPerThread INT, staticSharedMemory INT, dynamicSharedMemory INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, streamId INT, correlationId INT,
    globalPid INT, bytes INT, copyKind INT, srcKind INT, dstKind INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, eventClass INT, globalTid INT, correlationId INT,
    nameId INT, returnValue INT);
CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT, textId INT);
CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT, smCount INT, computeMajor INT, computeMinor INT, threadsPerWarp INT,
    maxWarpsPerSm INT, maxRegistersPerSm INT, maxShmemPerSm INT, maxShmemPerBlock INT);
"""
GEMM, LAUNCH, MM = 1, 2, 3
SHAPE = (108, 1, 1, 256, 1, 1, 64, 1024, 2048)  # grid, block, registers, static and dynamic shared memory


def number(process: int, thread: int = 0) -> int:
    """The number by which nsys identifies a process or a thread."""
    return 1 << 48 | process << 24 | thread


def export(path: Path, *, processes: int = 1) -> Path:
    """Two steps of 100 us with a product of 60 us, launched 20 us after the beginning of the step."""
    with closing(sqlite3.connect(path)) as file:
        file.executescript(TABLES)
        texts = [
            (GEMM, "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_tn"),
            (LAUNCH, "cudaLaunchKernel_v7000"),
            (MM, "aten::mm"),
        ]
        file.executemany("INSERT INTO StringIds VALUES (?, ?)", texts)
        file.execute(
            "INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100-SXM4-80GB', 108, 8, 0, 32, 64, 65536, 167936, 49152)"
        )
        for process in range(processes):
            gpu, thread = number(7 + process), number(7 + process, 11)
            for step in range(2):
                start = 100_000 * (step + 1)
                file.execute(
                    "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, NULL)",
                    (start, start + 100_000, f"iteration{step}", thread),
                )
                file.execute(
                    "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, ?, ?)",
                    (start + 10_000, start + 30_000, thread, MM),
                )
                file.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0)",
                    (start + 20_000, start + 22_000, thread, 5 + step, LAUNCH),
                )
                file.execute(
                    f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 18)})",
                    (start + 25_000, start + 85_000, process, 1, 7, 5 + step, gpu, GEMM, GEMM, *SHAPE),
                )
            file.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (205000, 210000, ?, 7, 9, ?, 4096, 1, 1, 3)",
                (process, gpu),
            )
        file.commit()
    return path


def test_kernels_launches_ranges_and_devices_are_read(tmp_path: Path) -> None:
    (found,) = traces_of_nsight_systems(export(tmp_path / "report.sqlite"))
    kernel = found.of("kernel")[0]
    assert (kernel.start, kernel.duration, kernel.args["grid"], kernel.args["shared memory"]) == (
        125_000,
        60_000,
        [108, 1, 1],
        3072,
    )
    assert [event.name for event in found.of("cuda_runtime")] == ["cudaLaunchKernel"] * 2
    assert [event.name for event in found.of("cpu_op")] == ["aten::mm"] * 2
    assert [event.name for event in found.of("gpu_memcpy")] == ["Memcpy HtoD (Pageable -> Device)"]
    profile = profile_of_traces([found])
    assert profile.timing.seconds == pytest.approx((100e-6, 100e-6))
    assert profile.level("busy").value == pytest.approx(0.6)
    assert profile.level("sm_efficiency").value == pytest.approx(0.6)  # a block on each of 108 multiprocessors
    assert profile.environment["device"] == "NVIDIA A100-SXM4-80GB"


def test_each_process_is_a_trace(tmp_path: Path) -> None:
    found = traces_of_nsight_systems(export(tmp_path / "a report?.sqlite", processes=2))
    assert [trace.of("kernel")[0].process for trace in found] == [0, 1]
    assert len(profile_of_traces(found).ranks) == 2


def test_a_range_of_emit_nvtx_is_an_operator_with_its_number(tmp_path: Path) -> None:
    path = export(tmp_path / "report.sqlite")
    with closing(sqlite3.connect(path)) as file:
        file.execute("INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, 'aten::add, seq = 17', ?, NULL)", (number(7, 11),))
        file.execute("INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, 'my own words', ?, NULL)", (number(7, 11),))
        file.execute("INSERT INTO NVTX_EVENTS VALUES (3, NULL, 59, 'never ended', ?, NULL)", (number(7, 11),))
        file.commit()
    (found,) = traces_of_nsight_systems(path)
    named = {event.name: event for event in found.events}
    assert named["aten::add"].category == "cpu_op" and named["aten::add"].args["Sequence number"] == 17
    assert named["my own words"].category == "user_annotation"
    assert "never ended" not in named and found.left_out == 0


def test_a_file_without_gpu_work_or_damaged_is_a_sentence(tmp_path: Path) -> None:
    empty = tmp_path / "empty.sqlite"
    with closing(sqlite3.connect(empty)) as file:
        file.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    with pytest.raises(Unreadable, match="neither GPU work nor ranges"):
        traces_of_nsight_systems(empty)
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"SQLite format 3\x00" + bytes(range(256)) * 8)
    with pytest.raises(Unreadable, match="cannot be read"):
        traces_of_nsight_systems(damaged)
    assert damaged.read_bytes().startswith(b"SQLite format 3\x00")
