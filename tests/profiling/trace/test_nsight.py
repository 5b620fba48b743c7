"""Reports of Nsight Compute in all layouts and locales."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.profiling.trace.nsight import Unsuitable, kernels_of, levels_of_report

# Issue slots: (30 x 3 us + 60 x 1 us) / 4 us = 37.5 %. Sub-partitions: (50 x 3 + 90 x 1) / 4 = 60 %.
RAW = """\
==PROF== Connected to process 4711 (/usr/bin/python3)
loss 0.5, step 1
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"gpu__time_duration.sum","launch__grid_size","smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",\
"smsp__issue_active.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","ns","","%","%"
"0","4711","python3","127.0.0.1","ampere_sgemm_128x64_nn","1","7","(128, 1, 1)","(1056, 1, 1)","0","9.0",\
"3,000.00","1,056","50.00","30.00"
"1","4711","python3","127.0.0.1","void f<float, 4>(int)","1","7","(128, 1, 1)","(1, 1, 1)","0","9.0",\
"1,000","1","90.00","60.00"
"""
METRICS = """\
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Section Name","Metric Name",\
"Metric Unit","Metric Value"
"0","1","python3","127.0.0.1","gemm","1","7","Command line profiler metrics","gpu__time_duration.sum","us","3.00"
"0","1","python3","127.0.0.1","gemm","1","7","Command line profiler metrics",\
"smsp__issue_active.avg.pct_of_peak_sustained_active","%","30.00"
"0","1","python3","127.0.0.1","gemm","1","7","Command line profiler metrics","smsp__cycles_active.avg","cycle","1,500.5"
"0","1","python3","127.0.0.1","gemm","1","7","Command line profiler metrics","smsp__cycles_elapsed.avg","cycle","3,001"
"1","1","python3","127.0.0.1","gemm","1","7","Command line profiler metrics","gpu__time_duration.sum","ns","1,000.00"
"1","1","python3","127.0.0.1","gemm","1","7","Command line profiler metrics",\
"smsp__issue_active.avg.pct_of_peak_sustained_active","%","60.00"
"1","1","python3","127.0.0.1","gemm","1","7","Command line profiler metrics","smsp__cycles_active.avg","cycle","900"
"1","1","python3","127.0.0.1","gemm","1","7","Command line profiler metrics","smsp__cycles_elapsed.avg","cycle","1,000"
"""
DETAILS = """\
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Section Name","Metric Name",\
"Metric Unit","Metric Value"
"0","1","python3","127.0.0.1","gemm","1","7","GPU Speed Of Light Throughput","Duration","usecond","3.00"
"0","1","python3","127.0.0.1","gemm","1","7","Scheduler Statistics","One or More Eligible","%","30.00"
"1","1","python3","127.0.0.1","gemm","1","7","GPU Speed Of Light Throughput","Duration","nsecond","1,000"
"1","1","python3","127.0.0.1","gemm","1","7","Scheduler Statistics","One or More Eligible","%","60.00"
"""


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "report.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("content", [RAW, METRICS, RAW.encode("utf-16"), b"\xef\xbb\xbf" + RAW.encode()])
def test_both_layouts_are_weighed_by_duration(tmp_path: Path, content: str | bytes) -> None:
    levels = levels_of_report(written(tmp_path, content))
    assert levels["issue_slots"].value == pytest.approx(0.375)
    assert levels["sub_partitions"].value == pytest.approx(0.6)
    assert levels["issue_slots"].basis == "Nsight Compute, 2 kernels, weighted by duration"


@pytest.mark.parametrize(
    "thousands, sign", [(".", ","), ("\u202f", ","), ("'", "."), ("", ",")], ids=["German", "French", "Swiss", "bare"]
)
def test_numbers_are_read_as_their_locale_writes_them(tmp_path: Path, thousands: str, sign: str) -> None:
    swapped = RAW
    for number in ("3,000.00", "1,000", "1,056", "50.00", "30.00", "90.00", "60.00"):
        swapped = swapped.replace(
            f'"{number}"', '"' + number.replace(",", "T").replace(".", sign).replace("T", thousands) + '"'
        )
    levels = levels_of_report(written(tmp_path, swapped))
    assert (levels["issue_slots"].value, levels["sub_partitions"].value) == pytest.approx((0.375, 0.6))


def test_the_details_page_has_issue_slots_and_names_the_option_for_the_rest(tmp_path: Path) -> None:
    levels = levels_of_report(written(tmp_path, DETAILS))
    assert levels["issue_slots"].value == pytest.approx(0.375)
    assert levels["sub_partitions"].value is None
    assert "ncu --set full --csv --page raw" in levels["sub_partitions"].reason


def test_a_kernel_whose_value_is_missing_does_not_count(tmp_path: Path) -> None:
    levels = levels_of_report(written(tmp_path, RAW.replace('"60.00"', '"n/a"')))
    assert levels["issue_slots"].value == pytest.approx(0.3)


def test_kernels_keep_their_names(tmp_path: Path) -> None:
    assert [kernel.name for kernel in kernels_of(written(tmp_path, RAW))] == [
        "ampere_sgemm_128x64_nn",
        "void f<float, 4>(int)",
    ]


@pytest.mark.parametrize(
    "content, why",
    [
        (RAW.replace("smsp__", "sm__"), "neither issue slots nor active cycles.*--set full --csv --page raw"),
        (RAW.replace("gpu__time_duration", "x__y"), "with their durations"),
        ("a,b\n1,2\n", "is not a CSV report of Nsight Compute"),
        ("", "is not a CSV report of Nsight Compute"),
        (b"NVR\x00\x01\x02", "binary report.*--import report.csv --csv --page raw"),
        ("\n".join(RAW.splitlines()[:5]), "has no kernels"),
    ],
)
def test_a_file_that_is_not_a_report_gets_the_option_that_writes_one(
    tmp_path: Path, content: str | bytes, why: str
) -> None:
    with pytest.raises(Unsuitable, match=f"(?s){why}"):
        levels_of_report(written(tmp_path, content))
