"""Files of rocprofv3 and rocprof, created here from their documentation."""

from __future__ import annotations

from typing import Any

import pytest

from autofuse.profiling.trace.inputs.rocprof import traces_of_rocprof, with_categories
from autofuse.profiling.trace.profile import profile_of_traces
from autofuse.profiling.trace.trace import parse_trace

NAME = "Cijk_Ailk_Bljk_MI16x16x16x1"
GPU, CPU = {"handle": 17}, {"handle": 3}


def dispatch(start: int, end: int, correlation: int = 1) -> dict[str, Any]:
    return {
        "kind": 11, "operation": 1, "thread_id": 5, "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": start, "end_timestamp": end,
        "dispatch_info": {
            "agent_id": GPU, "queue_id": {"handle": 2}, "kernel_id": 4, "group_segment_size": 512,
            "workgroup_size": {"x": 256, "y": 1, "z": 1}, "grid_size": {"x": 1000, "y": 2, "z": 1},
        },
    }  # fmt: skip


def content(**records: Any) -> dict[str, Any]:
    tool = {
        "metadata": {"pid": 9},
        "agents": [{"id": CPU, "type": 1, "name": "EPYC"},
                   {"id": GPU, "type": 2, "name": "gfx942", "product_name": "AMD Instinct MI300X", "cu_count": 304,
                    "wave_front_size": 64, "max_waves_per_simd": 8, "simd_per_cu": 4}],
        "kernel_symbols": [{"kernel_id": 4, "formatted_kernel_name": NAME, "kernel_name": "x.kd"}],
        "strings": {"buffer_records": [{"kind": "HIP_API", "operations": ["none", "hipLaunchKernel"]},
                                       {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]}]},
        "buffer_records": records,
    }  # fmt: skip
    return {"rocprofiler-sdk-tool": [tool]}


def test_dispatches_become_kernels_with_their_launches() -> None:
    call = {
        "operation": 1,
        "thread_id": 5,
        "correlation_id": {"internal": 1},
        "start_timestamp": 100,
        "end_timestamp": 200,
    }
    step = {
        "thread_id": 5,
        "correlation_id": {"internal": 8},
        "start_timestamp": 0,
        "end_timestamp": 10_000,
        "args": {"message": "step 3"},
    }
    copy = {
        "operation": 1, "correlation_id": {"internal": 2}, "start_timestamp": 6000, "end_timestamp": 7000, "bytes": 64,
        "src_agent_id": CPU, "dst_agent_id": GPU,
    }  # fmt: skip
    (found,) = traces_of_rocprof(
        content(kernel_dispatch=[dispatch(300, 5300)], hip_api=[call], memory_copy=[copy], marker_api=[step]), "a.json"
    )
    kernel = found.of("kernel")[0]
    assert (kernel.name, kernel.start, kernel.duration) == ("Cijk_Ailk_Bljk_MI16x16x16x1", 300, 5000)
    assert (kernel.args["grid"], kernel.args["block"]) == ([4, 2, 1], [256, 1, 1])  # the grid counts work-items
    assert [event.name for event in found.of("gpu_memcpy")] == ["Memcpy HtoD"]
    assert [event.name for event in found.of("hip_runtime")] == ["hipLaunchKernel"]
    profile = profile_of_traces([found])
    assert profile.timing.seconds == pytest.approx((10e-6,))
    assert profile.level("busy").value == pytest.approx(0.5)
    assert profile.level("tensor_share").value == pytest.approx(0.5)  # MI16x16 is a matrix core's
    assert profile.environment["device"] == "AMD Instinct MI300X" and profile.environment["SMs"] == "304"
    host = next(share for share in profile.shares if share.name == "host")
    assert host.share is not None  # the launch is found by its correlation


def test_records_without_times_are_counted_and_left_out() -> None:
    (found,) = traces_of_rocprof(
        content(kernel_dispatch=[dispatch(5, 3), dispatch(1, 2), {"dispatch_info": None}]), "a.json"
    )
    assert (len(found.events), found.left_out) == (1, 2)
    assert traces_of_rocprof({"rocprofiler-sdk-tool": ["?"]}, "a.json") == []


def test_processes_of_the_older_rocprof_tell_what_their_events_are() -> None:
    listed = [
        {"ph": "M", "name": "process_name", "pid": 6, "args": {"name": "GPU0"}},
        {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "CPU HIP API"}},
        {"ph": "X", "name": "attn_fwd.kd", "pid": "6", "tid": "1", "ts": "10", "dur": "5", "args": {"dev-id": "0"}},
        {"ph": "X", "name": "hipLaunchKernel", "pid": "2", "tid": "9", "ts": "1", "dur": "2", "args": {}},
    ]  # fmt: skip
    found = parse_trace(with_categories({"traceEvents": listed}))
    assert [(event.name, event.category) for event in found.events] == [
        ("hipLaunchKernel", "hip_runtime"),
        ("attn_fwd.kd", "kernel"),
    ]
    assert profile_of_traces([found]).level("busy").value == pytest.approx(5 / 14)


def test_a_trace_with_categories_stays_unchanged() -> None:
    listed = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "GPU 0"}},
              {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 0, "ts": 1, "dur": 1}]  # fmt: skip
    whole = {"traceEvents": listed}
    assert with_categories(whole) is whole
