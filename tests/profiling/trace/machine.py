"""A simulated machine, and the trace that Kineto would write of it: a host that launches, and streams that run in
order.

Kernels begin when they are launched, their stream is free, and the events that they wait for are done. So the trace
follows from the cause, as on a real machine. Times are in microseconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from autofuse.profiling.trace.trace import Trace, parse_trace

Entry = dict[str, Any]

H100: Entry = {
    "id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0, "numSms": 132, "warpSize": 32,
    "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536, "sharedMemPerBlock": 49152,
    "sharedMemPerMultiprocessor": 233472,
}  # fmt: skip
A100: Entry = {**H100, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "numSms": 108}
MI300: Entry = {
    "id": 0,
    "name": "AMD Instinct MI300X",
    "numSms": 304,
    "warpSize": 64,
    "maxThreadsPerMultiprocessor": 2048,
}
UNKNOWN: Entry = {"id": 0, "name": "Accelerator 9", "numSms": 64, "warpSize": 32, "maxThreadsPerMultiprocessor": 2048}
DEVICES = {"H100": H100, "A100": A100, "MI300": MI300, "unknown": UNKNOWN}

NAMES = {
    "H100": {
        "gemm": "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "sgemm": "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_simt_ffma",
        "add": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
        "softmax": "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)",
        "gelu": "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int)",
        "adam": "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>()",
        "gemv": "void gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 0>()",
        "gather": "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>(long)",
        "flash": "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)",
        "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "allgather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "sendrecv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    },
    "MI300": {
        "gemm": "Cijk_Alik_Bljk_BBS_BH_MT256x256x64_MI16x16x16x1_SN", "sgemm": "Cijk_Ailk_Bljk_SB_MT128x64x16_SE_K1",
        "add": "void at::native::elementwise_kernel_manual_unroll<128, 8, at::native::CUDAFunctor_add<float>>(int)",
        "softmax": "void at::native::cunn_SoftMaxForward<8, float, float, SoftMaxForwardEpilogue>()",
        "gelu": "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl>(int)",
        "adam": "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>()",
        "gemv": "void rocblas_gemvn_kernel<64, 4, long, float>()",
        "gather": "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>(long)",
        "flash": "attn_fwd.kd", "allreduce": "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "allgather": "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "sendrecv": "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
    },
}  # fmt: skip
NAMES |= {"A100": {**NAMES["H100"], "gemm": "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"}}
NAMES |= {"unknown": {**NAMES["A100"], "gemm": "acme_gemm_tensorop_bf16_256"}}


@dataclass(frozen=True)
class Shape:
    """The parts that a trace has."""

    steps: bool = True  # ProfilerStep#
    host: bool = True  # operators, ranges, runtime calls
    correlation: bool = True
    flops: bool = False  # shapes of products
    device: str = "H100"


@dataclass
class Machine:
    """A host thread and a GPU with streams; `at` is the host's time."""

    shape: Shape = field(default_factory=Shape)
    seed: int = 0
    rank: int | None = None
    world: int = 1
    at: float = 1000.0
    noise: float = 0.15
    stretch: float = 1.0
    entries: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed} {self.rank}")
        self.free: dict[int, float] = {}
        self.number = 0
        self.collectives: list[int] = []  # their lengths are set when all ranks are known
        self.amd = self.shape.device == "MI300"

    def noisy(self, duration: float) -> float:
        """A duration with `noise`, on a machine that takes `stretch` times as long for everything."""
        return self.stretch * duration * self.random.uniform(1 - self.noise, 1 + self.noise)

    def put(self, name: str, category: str, start: float, duration: float, thread: int = 1, **args: Any) -> Entry:
        """Add one event."""
        entry = {
            "ph": "X",
            "name": name,
            "cat": category,
            "ts": start,
            "dur": duration,
            "pid": 1,
            "tid": thread,
            "args": args,
        }
        self.entries.append(entry)
        return entry

    def call(self, name: str, duration: float, **args: Any) -> Entry:
        """A call of the runtime on the host, with its duration."""
        name = name.replace("cuda", "hip") if self.amd else name
        entry = self.put(name, "cuda_runtime", self.at, duration, **args)
        self.at += duration
        return entry

    def launch(
        self, kind: str, duration: float, *, op: str = "", host: float = 5.0, stream: int = 7, after: float = 0.0,
        blocks: int = 2048, dims: Any = None, name: str = "", **args: Any,
    ) -> float:  # fmt: skip
        """An operator that launches one kernel, which waits for `after`. Returns when the kernel ends."""
        began, self.number = self.at, self.number + 1
        self.at += self.noisy(host) * 0.5
        self.call("cudaLaunchKernel", 2.0, correlation=self.number)
        self.at += self.noisy(host) * 0.5
        start = max(self.at - self.noisy(host) * 0.2 + 2.0, self.free.get(stream, 0.0) + 0.8, after)
        took = self.noisy(duration)
        named = name or NAMES[self.shape.device][kind]
        grid = {} if self.shape.device == "MI300" else {"registers per thread": 64, "shared memory": 0}
        self.put(
            named, "kernel", start, took, stream, device=0, stream=stream, correlation=self.number,
            grid=[blocks, 1, 1], block=[256, 1, 1], **grid, **args,
        )["pid"] = 0  # fmt: skip
        shapes = {"Input Dims": dims, "Input type": ["c10::BFloat16"] * 3} if dims and self.shape.flops else {}
        self.put(op or f"aten::{kind}", "cpu_op", began, self.at - began, **shapes)
        self.free[stream] = start + took
        return start + took

    def copy(self, duration: float, name: str = "Memcpy HtoD (Pageable -> Device)", wait: bool = True) -> None:
        """A copy in the stream. If it waits, the host is in the call until the copy ends."""
        self.number += 1
        start = max(self.at + 3, self.free.get(7, 0.0) + 0.8)
        end = start + self.noisy(duration)
        call = self.call("cudaMemcpyAsync", 4.0, correlation=self.number)
        if wait:
            call["dur"], self.at = end - call["ts"], end
        self.put(name, "gpu_memcpy", start, end - start, 7, device=0, stream=7, correlation=self.number, bytes=10**6)[
            "pid"
        ] = 0
        self.free[7] = end

    def sync(self, name: str = "cudaStreamSynchronize") -> None:
        """The host waits until the GPU is done."""
        until = max([self.at, *self.free.values()]) + 3
        began = self.at
        self.call(name, until - self.at)
        self.put("aten::item", "cpu_op", began - 1, until - began + 2)

    def mark(self, name: str, duration: float) -> None:
        """A range on the host in which nothing is launched."""
        self.put(name, "user_annotation", self.at, self.noisy(duration))
        self.at = self.entries[-1]["ts"] + self.entries[-1]["dur"]

    def step(self, number: int, body: Callable[[Machine], None]) -> None:
        """One step."""
        began = self.at
        body(self)
        if self.shape.steps:
            self.put(f"ProfilerStep#{number}", "user_annotation", began, self.at - began)

    def trace(self) -> Trace:
        """The trace with the parts that the shape has."""
        kept = self.entries
        if not self.shape.host:
            kept = [e for e in kept if e["cat"] in ("kernel", "gpu_memcpy")]
        if not self.shape.correlation:
            kept = [{**e, "args": {k: v for k, v in e["args"].items() if k != "correlation"}} for e in kept]
        content: Entry = {"deviceProperties": [DEVICES[self.shape.device]], "traceEvents": kept}
        if self.rank is not None:
            content["distributedInfo"] = {"rank": self.rank, "world_size": self.world}
        return parse_trace(content, f"rank{self.rank}.json" if self.rank is not None else "trace.json")
