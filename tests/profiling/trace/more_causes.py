"""More steps with known causes: other streams, devices, lengths and mixes than those from which thresholds were
derived."""

from __future__ import annotations

from collections.abc import Callable

from tests.profiling.trace.causes import Cause, layers
from tests.profiling.trace.machine import Machine, Shape

Body = Callable[[Machine], None]

PINNED = "Memcpy HtoD (Pinned -> Device)"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
MORE: dict[str, tuple[Cause, Shape]] = {}


def cause(name: str, limit: str, kinds: tuple[str, ...], shape: Shape | None = None) -> Callable[[Body], Body]:
    """Register a step under its name.

    kinds: the correct kinds of a first action; empty if nothing is left to do.
    """

    def entered(body: Body) -> Body:
        MORE[name] = Cause(body, limit, kinds), shape or Shape()
        return body

    return entered


@cause("loader: IterableDataset, short steps", "data", ("loader-workers",))
def _cause_0(m: Machine) -> None:
    m.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 600)
    m.copy(20, wait=False, name=PINNED)
    layers(m, 4, product=60)
    m.sync()


@cause("loader with cudaDeviceSync each step, mild 25 %", "data", ("loader-workers",))
def _cause_1(m: Machine) -> None:
    m.mark(LOADER, 3000)
    m.copy(50, wait=False, name=PINNED)
    layers(m)
    m.sync()


@cause("unmarked get_batch range", "data", ("loader-workers",))
def _cause_2(m: Machine) -> None:
    m.sync()
    m.mark("get_batch", 8000)
    m.copy(200, PINNED, wait=False)
    layers(m)


@cause("loader on MI300", "data", ("loader-workers",), Shape(device="MI300"))
def _cause_3(m: Machine) -> None:
    m.mark(LOADER, 12000)
    m.copy(300, "CopyHostToDevice", wait=False)
    layers(m)
    m.sync("hipDeviceSynchronize")


@cause("two micro-batches, each with slow loader", "data", ("loader-workers",))
def _cause_4(m: Machine) -> None:
    for _ in range(2):
        m.mark(LOADER, 6000)
        m.copy(100, PINNED, wait=False)
        layers(m, 12)
        m.sync()


@cause("launch-bound, 3 streams", "launch", ("cuda-graphs",))
def _cause_5(m: Machine) -> None:
    for i in range(240):
        m.launch("gemm", 4, op="aten::mm", host=22, stream=(7, 11, 13)[i % 3])


@cause("launch-bound A100 mid kernels", "launch", ("cuda-graphs",), Shape(device="A100"))
def _cause_6(m: Machine) -> None:
    layers(m, 50, product=12, host=28, small=4)


@cause("launch-bound unknown device", "launch", ("cuda-graphs",), Shape(device="unknown"))
def _cause_7(m: Machine) -> None:
    layers(m, 50, product=5, host=28, small=3)


@cause("launch-bound decode (gemv tiny)", "launch", ("cuda-graphs",))
def _cause_8(m: Machine) -> None:
    for _ in range(150):
        m.launch("gemv", 3, op="aten::mm", host=16)
        m.launch("add", 2, host=16)


@cause("launch-bound 30 % idle only", "launch", ("cuda-graphs",))
def _cause_9(m: Machine) -> None:
    layers(m, 60, product=18, host=16, small=4)


@cause("eager optimizer tiny kernels launch", "launch", ("cuda-graphs",))
def _cause_10(m: Machine) -> None:
    layers(m, 6, product=60, host=5)
    for _ in range(400):
        m.launch("add", 2, host=14)


@cause("item() each layer short step", "launch", ("remove-synchronisation",))
def _cause_11(m: Machine) -> None:
    for _ in range(8):
        for _ in range(20):
            m.launch("gemm", 6, op="aten::mm", host=14)
        m.launch("gemm", 250, op="aten::mm")
        m.sync()


@cause("nonzero MoE sync", "launch", ("remove-synchronisation",))
def _cause_12(m: Machine) -> None:
    for _ in range(24):
        m.launch("gemm", 150, op="aten::mm")
        m.launch("add", 5)
        m.sync("cudaStreamSynchronize")
        for _ in range(8):
            m.launch("gemm", 10, op="aten::mm", host=14)


@cause("device sync once a step, nothing else", "compute", ())
def _cause_13(m: Machine) -> None:
    layers(m, 30, product=400)
    m.sync()


@cause("cudaMalloc each step", "launch", ("allocator",))
def _cause_14(m: Machine) -> None:
    for _ in range(20):
        m.call("cudaMalloc", 700)
        layers(m, 1, product=80)
        m.sync()
        m.call("cudaFree", 500)


@cause("python pause: checkpoint", "launch", ("host-work",))
def _cause_15(m: Machine) -> None:
    layers(m, 12)
    m.sync()
    m.mark("save_checkpoint", 9000)


@cause("python pause unmarked", "launch", ("host-work",))
def _cause_16(m: Machine) -> None:
    layers(m, 12)
    m.sync()
    m.at += m.noisy(8000)


@cause("pageable HtoD", "blocked", ("pin-memory",))
def _cause_17(m: Machine) -> None:
    m.copy(3000)
    layers(m, 8)


@cause("pageable on A100 with noise", "blocked", ("pin-memory",), Shape(device="A100"))
def _cause_18(m: Machine) -> None:
    for _ in range(4):
        m.copy(1500)
        layers(m, 4)


@cause("offload DtoH pinned sync", "blocked", ("keep-on-device",))
def _cause_19(m: Machine) -> None:
    for _ in range(8):
        layers(m, 2)
        m.copy(900, "Memcpy DtoH (Device -> Pinned)")


@cause("cpu offload of weights HtoD pinned", "blocked", ("prefetch",))
def _cause_20(m: Machine) -> None:
    for _ in range(10):
        m.copy(800, PINNED, wait=False)
        layers(m, 1)


@cause("event wait, side stream serial", "blocked", ("event",))
def _cause_21(m: Machine) -> None:
    for _ in range(10):
        e = m.launch("gemm", 150, op="aten::mm", stream=7)
        m.call("cudaStreamWaitEvent", 2.0)
        m.launch("gemm", 150, op="aten::mm", stream=13, after=e + 300)
        m.free[7] = m.free[13]


@cause("attention naive with dropout", "fusable", ("fuse-attention",))
def _cause_22(m: Machine) -> None:
    for _ in range(16):
        m.launch("gemm", 80, op="aten::bmm")
        for k in ("add", "add", "softmax"):
            m.launch(k, 100)
        m.launch("add", 100, name="fused_dropout_kernel_vec<float, float, unsigned int, 1, 4>()")
        m.launch("gemm", 80, op="aten::bmm")
        m.launch("gemm", 300, op="aten::mm")


@cause("attention naive MI300", "fusable", ("fuse-attention",), Shape(device="MI300"))
def _cause_23(m: Machine) -> None:
    for _ in range(16):
        m.launch("gemm", 80, op="aten::bmm")
        for k in ("add", "softmax"):
            m.launch(k, 150)
        m.launch("gemm", 80, op="aten::bmm")
        m.launch("gemm", 250, op="aten::mm")


@cause("attention naive unknown", "fusable", ("fuse-attention",), Shape(device="unknown"))
def _cause_24(m: Machine) -> None:
    for _ in range(16):
        m.launch("gemm", 80, op="aten::bmm")
        for k in ("add", "softmax", "add"):
            m.launch(k, 120)
        m.launch("gemm", 80, op="aten::bmm")
        m.launch("gemm", 250, op="aten::mm")


@cause("attention only 12 %", "fusable", ("fuse-attention",))
def _cause_25(m: Machine) -> None:
    for _ in range(16):
        m.launch("gemm", 100, op="aten::bmm")
        m.launch("add", 40)
        m.launch("softmax", 60)
        m.launch("gemm", 100, op="aten::bmm")
        m.launch("gemm", 350, op="aten::mm")


@cause("norm chains rms by hand", "fusable", ("fuse-chain",))
def _cause_26(m: Machine) -> None:
    for _ in range(24):
        m.launch("gemm", 200, op="aten::mm")
        for n in (
            "void at::native::vectorized_elementwise_kernel<4, at::native::pow_tensor_scalar>(int)",
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps>>()",
            "void at::native::vectorized_elementwise_kernel<4, at::native::rsqrt_kernel_cuda>(int)",
            "void at::native::elementwise_kernel<128, 2, MulFunctor>()",
            "void at::native::elementwise_kernel<128, 2, MulFunctor>()",
        ):
            m.launch("add", 50, name=n)


@cause("unfused optimizer", "fusable", ("fuse-optimizer",))
def _cause_27(m: Machine) -> None:
    layers(m, 12)
    began = m.at
    for _ in range(14):
        m.launch("add", 500, name="multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<float>>()")
    m.put("Optimizer.step#AdamW.step", "user_annotation", began, m.at - began)


@cause("decode weights MI300", "memory", ("larger-batch",), Shape(device="MI300"))
def _cause_28(m: Machine) -> None:
    for _ in range(60):
        m.launch("gemv", 50, op="aten::mm", host=4)
        m.launch("add", 2, host=4)


@cause("decode by shapes (gemm kernels, few rows)", "memory", ("larger-batch",), Shape(flops=True))
def _cause_29(m: Machine) -> None:
    for _ in range(60):
        m.launch("gemm", 50, op="aten::mm", host=4, dims=[[4, 4096], [4096, 14336]])
        m.launch("add", 2, host=4)


@cause("embedding scatter heavy", "memory", ("move-less",))
def _cause_30(m: Machine) -> None:
    for _ in range(20):
        m.launch("gather", 400, op="aten::index")
        m.launch("gather", 300, op="aten::scatter")
        m.launch("gemm", 60, op="aten::mm")


@cause("compute well used A100", "compute", (), Shape(device="A100", flops=True))
def _cause_31(m: Machine) -> None:
    for _ in range(30):
        m.launch("gemm", 2200, op="aten::mm", dims=[[16384, 4096], [4096, 4096]])
        m.launch("gelu", 30)


@cause("compute well used MI300", "compute", (), Shape(device="MI300"))
def _cause_32(m: Machine) -> None:
    for _ in range(30):
        m.launch("gemm", 900, op="aten::mm")
        m.launch("flash", 300)
        m.launch("gelu", 20)


@cause("fp32 A100", "compute", ("bf16",), Shape(device="A100"))
def _cause_33(m: Machine) -> None:
    for _ in range(25):
        m.launch("sgemm", 800, op="aten::mm")
        m.launch("flash", 50)


@cause("fp32 MI300", "compute", ("bf16",), Shape(device="MI300"))
def _cause_34(m: Machine) -> None:
    for _ in range(25):
        m.launch("sgemm", 800, op="aten::mm")
        m.launch("add", 20)


@cause("few blocks A100, long", "compute", ("larger-batch",), Shape(device="A100"))
def _cause_35(m: Machine) -> None:
    for _ in range(40):
        m.launch("gemm", 300, op="aten::mm", blocks=12)
        m.launch("gelu", 10, blocks=12)


@cause("low utilisation by shapes", "compute", ("larger-products",), Shape(flops=True))
def _cause_36(m: Machine) -> None:
    for _ in range(30):
        m.launch("gemm", 700, op="aten::mm", dims=[[2048, 4096], [4096, 4096]])


@cause("DDP exposed MI300", "communication", ("overlap",), Shape(device="MI300"))
def _cause_37(m: Machine) -> None:
    layers(m, 8)
    for _ in range(8):
        m.launch("allreduce", 400, stream=20, after=m.free[7], op="c10d::allreduce_", blocks=24)
    m.free[7] = m.free[20]


@cause("FSDP exposed all-gather", "communication", ("overlap",))
def _cause_38(m: Machine) -> None:
    for _ in range(16):
        e = m.launch("allgather", 350, stream=21, op="c10d::_allgather_base_", blocks=24)
        m.launch("gemm", 200, op="aten::mm", after=e)
        m.launch("flash", 100)
        m.free[21] = m.free[7]


@cause("TP all-reduce on compute stream", "communication", ("overlap",))
def _cause_39(m: Machine) -> None:
    for _ in range(24):
        m.launch("gemm", 150, op="aten::mm")
        e = m.launch("allreduce", 120, stream=20, after=m.free[7], op="c10d::allreduce_", blocks=24)
        m.free[7] = e


@cause("hidden comm: well used", "compute", ())
def _cause_40(m: Machine) -> None:
    for _ in range(20):
        m.launch("gemm", 600, op="aten::mm")
        m.launch("flash", 200)
        m.launch("allreduce", 400, stream=20, after=m.free[7] - 500, op="c10d::allreduce_", blocks=24)


@cause("pipeline bubbles 2", "communication", ("microbatches",))
def _cause_41(m: Machine) -> None:
    for _ in range(6):
        e = m.launch("sendrecv", 1500, stream=22, op="c10d::recv_", blocks=2)
        m.launch("gemm", 600, op="aten::mm", after=e)
        m.launch("flash", 200)


@cause("moe all-to-all", "communication", ("overlap",))
def _cause_42(m: Machine) -> None:
    for _ in range(12):
        e = m.launch(
            "sendrecv",
            300,
            stream=22,
            after=m.free.get(7, 0),
            op="c10d::alltoall_base_",
            blocks=24,
            **{"Collective name": "all_to_allv"},
        )
        m.launch("gemm", 200, op="aten::mm", after=e)
        m.launch("flash", 80)


@cause("compiled model launch-bound", "launch", ("cuda-graphs", "fuse-small-kernels"))
def _cause_43(m: Machine) -> None:
    for _ in range(160):
        m.launch("add", 4, host=18, name="triton_poi_fused_add_mul_0")
    for _ in range(40):
        m.launch("gemm", 8, op="aten::mm", host=18)


@cause("two causes: loader 40, launch 20", "data", ("loader-workers",))
def _cause_44(m: Machine) -> None:
    m.mark(LOADER, 4000)
    m.copy(50, PINNED, wait=False)
    layers(m, 40, product=14, host=20, small=4)
    m.sync()


@cause("fused model long memory-bound elementwise separate streams", "memory", ("move-less", "fuse-chain"))
def _cause_45(m: Machine) -> None:
    for _ in range(20):
        m.launch("gather", 500, stream=7, op="aten::index_select")
        m.launch("gemm", 100, op="aten::mm", stream=11)
