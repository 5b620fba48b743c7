"""Traces as programs leave them, with long kernel names, noise and few marks: the first sentence names the cause.

They share no code with the simulated machine (tests/profiling/trace/machine.py). Each is a few lines about one program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from autofuse.profiling.trace.profile import profile_of_traces
from autofuse.profiling.trace.trace import parse_trace

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_segment_k_off_kernel__5x_cublas"
NVJET = "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNN"
SGEMM = "ampere_sgemm_128x64_tn"
GEMV = "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4, false>(...)"
FLASH = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>>(...)"
ELEMENT = "void at::native::{}_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul>>(int, ...)"
MULTIPLY = ELEMENT.format("vectorized", "BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor>")
ADD = ELEMENT.format("vectorized", "CUDAFunctor_add<c10::BFloat16>")
POWER = ELEMENT.format("vectorized", "pow_tensor_scalar_kernel_impl<float, float>(...)::{lambda(float)#2}")
TANH = ELEMENT.format("vectorized", "tanh_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}")
CAST = ELEMENT.format("unrolled", "direct_copy_kernel_cuda(at::TensorIteratorBase&)")
DROPOUT = "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int>(...)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 11, false, false>(...)"
NCCL = "ncclDevKernel_{}(ncclDevKernelArgsStorage<4096ul>)"
PINNED, PAGEABLE, BACK = (
    "Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)",
)  # fmt: skip
GPUS = {
    "H100": ("NVIDIA H100 80GB HBM3", 9, 132, 2048),
    "A100": ("NVIDIA A100-SXM4-80GB", 8, 108, 2048),
}


class Program:
    """Writes the events of one process: a host thread that launches, and streams that run in order."""

    def __init__(self, gpu: str = "H100", rank: int = 0, world: int = 1) -> None:
        self.gpu, self.rank, self.world = gpu, rank, world
        self.now, self.number = 7_421_903.0, 9000
        self.free: defaultdict[int, float] = defaultdict(float)
        self.events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": 4242, "tid": 0, "ts": 0, "args": {"name": "python3"}},
            {"ph": "M", "name": "thread_name", "pid": 4242, "tid": 4242, "ts": 0, "args": {"name": "thread 4242"}},
        ]

    def event(self, name: str, category: str, start: float, length: float, where: Sequence[int], **args: Any) -> None:
        self.events.append({"ph": "X", "name": name, "cat": category, "ts": round(start, 3), "dur": round(length, 3),
                            "pid": where[0], "tid": where[1], "args": args})  # fmt: skip

    def host(self, name: str, length: float, category: str = "cpu_op") -> None:
        """The host is busy with something."""
        self.event(name, category, self.now, length, (4242, 4242), **{"External id": self.number})
        self.now += length

    def idle(self, length: float) -> None:
        """The host does something that no event tells."""
        self.now += length

    def run(
        self, operator: str, kernel: str, length: float, host: float = 6.0, stream: int = 7, after: float = 0.0,
        grid: Sequence[int] = (528, 1, 1), block: int = 256, **args: Any,
    ) -> float:  # fmt: skip
        """An operator launches a kernel or a copy. Returns when it ends."""
        self.number += 1
        copies = kernel.startswith("Mem")
        inside = {"External id": self.number, **args}
        self.event(operator, "cpu_op", self.now, host, (4242, 4242), **inside)
        call = "cudaMemcpyAsync" if copies else "cudaLaunchKernelExC" if "nccl" in kernel else "cudaLaunchKernel"
        self.event(call, "cuda_runtime", self.now + host * 0.3, host * 0.5, (4242, 4242), correlation=self.number)
        start = max(self.now + host * 0.8 + 2.0, self.free[stream], after)
        shape = {} if copies else {"grid": list(grid), "block": [block, 1, 1], "registers per thread": 64}
        self.event(kernel, "gpu_memcpy" if copies else "kernel", start, length, (0, stream), correlation=self.number,
                   device=0, stream=stream, **shape)  # fmt: skip
        for side, at, where in (("s", self.now + host * 0.4, (4242, 4242)), ("f", start, (0, stream))):
            self.events.append({"ph": side, "id": self.number, "pid": where[0], "tid": where[1], "ts": at,
                                "cat": "ac2g", "name": "ac2g", "bp": "e"})  # fmt: skip
        self.now += host
        self.free[stream] = start + length
        return start + length

    def wait(self, until: float | None = None, call: str = "cudaStreamSynchronize") -> None:
        """The host waits for the GPU."""
        end = max(self.now + 3.0, max(self.free.values(), default=0.0) if until is None else until)
        self.event(call, "cuda_runtime", self.now, end - self.now, (4242, 4242), correlation=0)
        self.now = end

    def content(self) -> dict[str, Any]:
        name, major, multiprocessors, threads = GPUS[self.gpu]
        made: dict[str, Any] = {
            "schemaVersion": 1, "traceEvents": self.events, "traceName": f"worker{self.rank}.pt.trace.json",
            "deviceProperties": [{"id": 0, "name": name, "computeMajor": major, "computeMinor": 0,
                "numSms": multiprocessors, "maxThreadsPerMultiprocessor": threads, "warpSize": 32,
                "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 233472}],
        }  # fmt: skip
        if self.world > 1:
            made["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "world_size": self.world}
        return made


def marked(body: Callable[[Program], None], program: Program, steps: int = 4) -> Program:
    """Runs steps that the profiler marks, as `profiler.step()` does."""
    for number in range(steps):
        start = program.now
        body(program)
        program.event(f"ProfilerStep#{number}", "user_annotation", start, program.now - start, (4242, 4242))
    program.wait(call="cudaDeviceSynchronize")
    return program


def layers(p: Program, count: int, length: float = 180.0, kernel: str = GEMM) -> None:
    for _ in range(count):
        p.run("aten::addmm", kernel, length)
        p.run("aten::native_layer_norm", "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel", 9.0)


def decoding_images(p: Program) -> None:
    """An unmarked reader of shards, then one copy to the GPU."""
    p.wait()
    p.idle(21_000)
    p.run("aten::to", PINNED, 380, host=12)
    layers(p, 40)


def small_policy_network(p: Program) -> None:
    """Reinforcement learning: hundreds of kernels of 2 microseconds."""
    for _ in range(150):
        p.run("aten::mul", MULTIPLY, 2.1, host=31)
        p.run("aten::addmm", "cublasLt::splitKreduce_kernel", 2.9, host=24, grid=(4, 1, 1))


def reads_the_loss(p: Program) -> None:
    """`if loss.item() > best` after each micro-batch."""
    for _ in range(6):
        layers(p, 5, 90)
        end = p.run("aten::_local_scalar_dense", BACK, 2, host=9)
        p.wait(end)
        p.idle(400)


def computes_metrics(p: Program) -> None:
    """The same, but most of the time goes into a metric in Python."""
    for _ in range(6):
        layers(p, 5, 90)
        p.wait(p.run("aten::_local_scalar_dense", BACK, 2, host=9))
        p.idle(900)


def gathers_weights(p: Program) -> None:
    """FSDP without prefetching: each layer waits for its weights."""
    for _ in range(12):
        end = p.run("c10d::_allgather_base_", NCCL.format("AllGather_RING_LL"), 900, stream=21, after=p.free[7],
                    grid=(24, 1, 1), block=544)  # fmt: skip
        p.free[7] = max(p.free[7], end)
        layers(p, 2, 150)


def offloads_weights(p: Program) -> None:
    """Weights come from ordinary host memory before each block."""
    for _ in range(8):
        end = p.run("aten::copy_", PAGEABLE, 1900, host=30)
        p.wait(end)
        layers(p, 3, 120)


def writes_one_token(p: Program) -> None:
    """A CUDA graph is not used, but the host is far ahead; matrix-vector products read all weights."""
    for _ in range(90):
        p.run("aten::mm", GEMV, 74, host=5)
        p.run("aten::mul", MULTIPLY, 2, host=4)


def trains_well(p: Program) -> None:
    """Large products near the peak of the tensor cores: 2 * 16384 * 8192 * 8192 operations in 3 ms."""
    shapes: dict[str, Any] = {
        "Input Dims": [[16384, 8192], [8192, 8192]],
        "Input type": ["c10::BFloat16", "c10::BFloat16"],
    }
    for _ in range(16):
        p.run("aten::mm", NVJET, 3000, grid=(132, 1, 1), block=384, **shapes)
        p.run("flash_attn::_flash_attn_forward", FLASH, 400, grid=(64, 32, 1), block=128)
        p.run("aten::add", ADD, 25)


def forgets_half_precision(p: Program) -> None:
    """Float32 products on the ordinary cores."""
    for _ in range(30):
        p.run("aten::addmm", SGEMM, 1400, grid=(32, 32, 1), block=128)
        p.run("aten::relu", ELEMENT.format("vectorized", "launch_clamp_scalar(...)"), 30)


def writes_its_own_norm(p: Program) -> None:
    """RMSNorm and GELU by hand."""
    for _ in range(24):
        for operator, kernel in (("to", CAST), ("pow", POWER), ("mul", MULTIPLY), ("mul", MULTIPLY), ("to", CAST)):
            p.run(f"aten::{operator}", kernel, 55, host=5)
        p.run("aten::linear", GEMM, 170, host=5)
        for operator, kernel in (("pow", POWER), ("mul", MULTIPLY), ("add", ADD), ("tanh", TANH), ("mul", MULTIPLY)):
            p.run(f"aten::{operator}", kernel, 60, host=5)
        p.run("aten::linear", GEMM, 170, host=5)


def attends_by_hand(p: Program) -> None:
    """baddbmm, softmax, dropout, bmm."""
    for _ in range(24):
        p.run("aten::linear", GEMM, 120, host=5)
        p.run("aten::baddbmm", GEMM, 90, host=5)
        p.run("aten::add", ADD, 130, host=5)
        p.run("aten::_softmax", SOFTMAX, 140, host=5)
        p.run("aten::native_dropout", DROPOUT, 130, host=5)
        p.run("aten::bmm", GEMM, 90, host=5)
        p.run("aten::linear", GEMM, 120, host=5)


# Program -> the class, the correct kinds of a first action (none if nothing is left to do), the GPU.
ALONE: dict[Callable[[Program], None], tuple[str, tuple[str, ...], str]] = {
    decoding_images: ("data", ("loader-workers",), "H100"),
    small_policy_network: ("launch", ("cuda-graphs",), "H100"),
    reads_the_loss: ("launch", ("remove-synchronisation",), "A100"),
    computes_metrics: ("launch", ("host-work",), "A100"),
    gathers_weights: ("communication", ("overlap",), "H100"),
    offloads_weights: ("blocked", ("pin-memory",), "H100"),
    writes_one_token: ("memory", ("larger-batch",), "A100"),
    trains_well: ("compute", (), "H100"),
    forgets_half_precision: ("compute", ("bf16",), "A100"),
    writes_its_own_norm: ("fusable", ("fuse-chain",), "H100"),
    attends_by_hand: ("fusable", ("fuse-attention",), "A100"),
}


@pytest.mark.parametrize("body", ALONE, ids=lambda f: f.__name__)
def test_the_first_sentence_names_the_cause(body: Callable[[Program], None]) -> None:
    limit, kinds, gpu = ALONE[body]
    found = profile_of_traces([parse_trace(marked(body, Program(gpu)).content(), "a.json")]).diagnosis
    assert found is not None and found.limit == limit, found
    assert not kinds and "nothing" in found.sentence or found.actions[0].kind in kinds, found


def ranks_of(world: int, late: Callable[[int, int], float], slow: Callable[[int], float]) -> Iterator[Program]:
    """Ranks that reduce their gradients at the end of each step. All leave the collective together.

    Args:
        world: the number of ranks.
        late: by rank and step, how long its loader takes.
        slow: by rank, how much slower its GPU is.
    """
    ranks = [Program("H100", rank, world) for rank in range(world)]
    for number in range(4):
        starts = [p.now for p in ranks]
        for p in ranks:
            if (wait := late(p.rank, number)) > 0:
                p.wait()
                p.host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", wait, "user_annotation")
            p.run("aten::to", PINNED, 60)
            layers(p, 30, 200 * slow(p.rank))
        joined = max(p.free[7] for p in ranks) + 20
        for p in ranks:
            own = max(p.now + 8, p.free[7])
            p.run("c10d::allreduce_", NCCL.format("AllReduce_Sum_bf16_RING_LL"), joined + 400 - own, stream=21,
                  after=own, grid=(24, 1, 1), block=544)  # fmt: skip
            p.free[7] = p.free[21] = joined + 400
            p.wait(joined + 400)
            p.event(f"ProfilerStep#{number}", "user_annotation", starts[p.rank], p.now - starts[p.rank], (4242, 4242))
    return iter(ranks)


JOBS: dict[str, tuple[Callable[[int, int], float], Callable[[int], float], int, tuple[str, ...]]] = {
    "the loader of rank 1 is slow": (lambda rank, _: 9000.0 * (rank == 1), lambda _: 1.0, 1, ("straggler-data",)),
    "the GPU of rank 2 is throttled": (lambda *_: 0.0, lambda rank: 1.7 if rank == 2 else 1.0, 2, ("slow-gpu",)),
}


@pytest.mark.parametrize("job", JOBS)
def test_the_first_sentence_names_the_rank_that_others_wait_for(job: str) -> None:
    late, slow, rank, kinds = JOBS[job]
    traces = [parse_trace(p.content(), f"rank{p.rank}.json") for p in ranks_of(4, late, slow)]
    found = profile_of_traces(traces).diagnosis
    assert found is not None and found.limit == "straggler", found
    assert f"rank {rank}" in found.sentence and found.actions[0].kind in kinds, found
