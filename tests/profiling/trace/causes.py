"""Steps with known causes on a simulated machine (machine.py)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from autofuse.profiling.trace.trace import Trace
from tests.profiling.trace.machine import Machine, Shape


def layers(machine: Machine, count: int = 24, product: float = 200.0, host: float = 5.0, small: float = 20.0) -> None:
    """A fused model: products, attention, and one small kernel between them."""
    for _ in range(count):
        machine.launch("gemm", product, op="aten::mm", host=host, dims=[[8192, 4096], [4096, 4096]])
        machine.launch("flash", product / 2, op="aten::_flash_attention_forward", host=host)
        machine.launch("gelu", small, host=host)
    machine.launch("adam", product, op="aten::_fused_adamw_", host=host)


def _data(m: Machine) -> None:
    m.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 9000)
    m.copy(100, "Memcpy HtoD (Pinned -> Device)", wait=False)
    layers(m)
    m.sync()


def _data_workers(m: Machine) -> None:
    m.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 20000)
    m.copy(300)
    layers(m)
    m.sync("cudaDeviceSynchronize")


def _data_unmarked(m: Machine) -> None:
    m.sync()
    m.at += m.noisy(15000)
    m.copy(200, "Memcpy HtoD (Pinned -> Device)", wait=False)
    layers(m)


def _launch(m: Machine) -> None:
    layers(m, 60, product=6, host=30, small=2)


def _launch_many(m: Machine) -> None:
    for _ in range(300):
        m.launch("add", 2.5, host=18)
    m.launch("gemm", 40, host=18)


def _sync(m: Machine) -> None:
    for _ in range(12):
        for _ in range(14):
            m.launch("gemm", 5, op="aten::mm", host=16)
        m.launch("gemm", 350, op="aten::mm")
        m.sync()


def _blocked_copy(m: Machine) -> None:
    m.copy(6000)
    layers(m, 12)


def _blocked_event(m: Machine) -> None:
    for _ in range(12):
        end = m.launch("gemm", 200, op="aten::mm")
        m.call("cudaStreamWaitEvent", 2.0)
        m.launch("gemm", 200, op="aten::mm", after=end + 400)


def _unfused_attention(m: Machine) -> None:
    for _ in range(24):
        m.launch("gemm", 100, op="aten::bmm")
        for kind in ("add", "add", "softmax", "add"):
            m.launch(kind, 120)
        m.launch("gemm", 100, op="aten::bmm")
        m.launch("gemm", 150, op="aten::mm")
    m.launch("adam", 200)


def _chains(m: Machine) -> None:
    for _ in range(24):
        m.launch("gemm", 150, op="aten::mm")
        for kind in ("add", "gelu", "add", "add", "gelu"):
            m.launch(kind, 70)
    m.launch("adam", 200)


def _memory_decode(m: Machine) -> None:
    for _ in range(60):
        m.launch("gemv", 60, op="aten::mm", host=4)
        m.launch("add", 3, host=4)


def _memory_gather(m: Machine) -> None:
    for _ in range(30):
        m.launch("gather", 300, op="aten::index")
        m.launch("gemm", 40, op="aten::mm")


def _compute_used(m: Machine) -> None:
    for _ in range(30):
        m.launch("gemm", 700, op="aten::mm", dims=[[16384, 4096], [4096, 4096]])
        m.launch("gelu", 20)


def _compute_scalar(m: Machine) -> None:
    for _ in range(30):
        m.launch("sgemm", 900, op="aten::mm")
        m.launch("gelu", 20)


def _compute_few_blocks(m: Machine) -> None:
    for _ in range(30):
        m.launch("gemm", 300, op="aten::mm", blocks=8)


def _exposed(m: Machine) -> None:
    layers(m, 8)
    for _ in range(8):
        m.launch("allreduce", 500, stream=20, after=m.free[7], op="c10d::allreduce_", blocks=24)
    m.free[7] = m.free[20]


def _pipeline(m: Machine) -> None:
    for _ in range(8):
        end = m.launch("sendrecv", 900, stream=22, op="c10d::recv_", blocks=2)
        m.launch("gemm", 500, op="aten::mm", after=end)
        m.launch("flash", 200)


@dataclass(frozen=True)
class Cause:
    """A step with a known cause: the class of its diagnosis, and the correct kinds of a first action."""

    body: Callable[[Machine], None]
    limit: str
    kinds: tuple[str, ...]
    host: bool = True  # only a trace of the host tells it


CAUSES = {
    "slow loader in the main process": Cause(_data, "data", ("loader-workers",)),
    "slow workers of the loader": Cause(_data_workers, "data", ("loader-workers",)),
    "slow loader that is not torch's": Cause(_data_unmarked, "data", ("loader-workers",), host=False),
    "slow Python": Cause(_launch, "launch", ("cuda-graphs",), host=False),
    "many tiny kernels": Cause(_launch_many, "launch", ("cuda-graphs",), host=False),
    "waits for numbers": Cause(_sync, "launch", ("remove-synchronisation",)),
    "copies from pageable memory": Cause(_blocked_copy, "blocked", ("pin-memory",), host=False),
    "waits for an event": Cause(_blocked_event, "blocked", ("event",)),
    "attention by hand": Cause(_unfused_attention, "fusable", ("fuse-attention",), host=False),
    "elementwise kernels in a row": Cause(_chains, "fusable", ("fuse-chain",), host=False),
    "reading weights for one token": Cause(_memory_decode, "memory", ("larger-batch",), host=False),
    "gathering": Cause(_memory_gather, "memory", ("move-less",), host=False),
    "products that use the GPU well": Cause(_compute_used, "compute", (), host=False),
    "float32 products": Cause(_compute_scalar, "compute", ("bf16",), host=False),
    "few blocks": Cause(_compute_few_blocks, "compute", ("larger-batch",), host=False),
    "gradients that nothing hides": Cause(_exposed, "communication", ("overlap",), host=False),
    "stages that wait for each other": Cause(_pipeline, "communication", ("microbatches", "overlap"), host=False),
}


def trace_of(cause: Cause, shape: Shape, seed: int = 0, steps: int = 3) -> Trace:
    """A few steps with this cause."""
    machine = Machine(shape, seed)
    for number in range(steps):
        machine.step(number, cause.body)
    return machine.trace()


def job(
    late: int | None, why: str, ranks: int = 4, seed: int = 0, steps: int = 4, shape: Shape | None = None
) -> list[Trace]:
    """Ranks with four collectives per step. One rank is late to each, because of its data, its host or its GPU.

    late: the late rank; None for another one each time.
    """
    machines = [Machine(shape or Shape(), seed, rank, ranks) for rank in range(ranks)]
    chance = random.Random(seed)
    for number in range(steps):
        began = [m.at for m in machines]
        for part in range(4):
            slow = late if late is not None else chance.randrange(ranks)
            ready = []
            for rank, m in enumerate(machines):
                if rank == slow and why == "data" and part == 0:
                    m.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 12000)
                elif part == 0:
                    m.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 40)
                if rank == slow and why == "host":
                    m.at += m.noisy(3000)
                    m.launch("add", 2)
                layers(m, 3, product=340 if rank == slow and why == "gpu" else 160)
                ready.append(max(m.at + 8, m.free[7] + 1))
            end = max(ready) + 300
            for m, since in zip(machines, ready, strict=True):
                m.launch(
                    "allreduce", 1, stream=20, blocks=24, op="c10d::allreduce_",
                    **{"Process Group Name": "0", "In msg nelems": 10**7, "dtype": "BFloat16"},
                )  # fmt: skip
                kernel = m.entries[-2]
                kernel["ts"], kernel["dur"] = since, end - since
                m.free = {7: end, 20: end}
                m.at = max(m.at, end - 2000)
        for m, start in zip(machines, began, strict=True):
            m.at = max(m.at, m.free[7] + 3)
            if m.shape.steps:
                m.put(f"ProfilerStep#{number}", "user_annotation", start, m.at - start)
    return [m.trace() for m in machines]
