"""Figures that others published, with their sources, for `benchmarks/plan_accuracy.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A decoder. inner: width of the feed-forward layer. gated: whether it has a gate, as SwiGLU does."""

    width: int
    layers: int
    heads: int
    inner: int
    classes: int
    key_heads: int = 0
    gated: bool = False
    head_width: int = 0


@dataclass(frozen=True)
class Throughput:
    """tokens_per_second: of one device, at a sequence length. tflops: model TFLOP/s of it, as published."""

    source: str
    model: str
    length: int
    tokens_per_second: float
    tflops: float


def _llama(width: int, layers: int, heads: int, inner: int, classes: int, key_heads: int) -> Shape:
    return Shape(width, layers, heads, inner, classes, key_heads, gated=True)


def _mpt(width: int, layers: int, heads: int) -> Shape:
    return Shape(width, layers, heads, 4 * width, 50368)


# Configurations: the models' own config.json (Llama 2 and 3), llm-foundry's scripts/train/yamls (MPT), Chowdhery et al.
# 2022, table 1 (PaLM: the heads are 256 wide, and all queries share one key head).
MODELS: Mapping[str, Shape] = {
    "Llama 2 7B": _llama(4096, 32, 32, 11008, 32000, 32), "Llama 2 13B": _llama(5120, 40, 40, 13824, 32000, 40),
    "Llama 2 70B": _llama(8192, 80, 64, 28672, 32000, 8), "Llama 3 8B": _llama(4096, 32, 32, 14336, 128256, 8),
    "Llama 3 70B": _llama(8192, 80, 64, 28672, 128256, 8),
    "MPT 1B": _mpt(2048, 24, 16), "MPT 3B": _mpt(2560, 32, 20), "MPT 7B": _mpt(4096, 32, 32),
    "MPT 13B": _mpt(5120, 40, 40), "MPT 30B": _mpt(7168, 48, 56), "MPT 70B": _mpt(8192, 80, 64),
    "PaLM 540B": Shape(18432, 118, 48, 73728, 256000, 1, gated=True, head_width=256),
}  # fmt: skip

# Rajbhandari et al.: ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020, table 1:
# gigabytes of model states on a device. parameters, devices, {stage: GB}.
ZERO_TABLE: tuple[tuple[float, int, dict[str, float]], ...] = (
    (7.5e9, 1, {"none": 120}),
    (7.5e9, 4, {"zero1": 52.5, "zero2": 41.3, "fsdp": 30}),
    (7.5e9, 16, {"zero1": 35.6, "zero2": 21.6, "fsdp": 7.5}),
    (7.5e9, 64, {"zero1": 31.4, "zero2": 16.6, "fsdp": 1.88}),
    (7.5e9, 256, {"zero1": 30.4, "zero2": 15.4, "fsdp": 0.47}),
    (7.5e9, 1024, {"zero1": 30.1, "zero2": 15.1, "fsdp": 0.12}),
    (128e9, 64, {"zero1": 536, "zero2": 284, "fsdp": 32}),
    (1e12, 1024, {"zero1": 4011, "zero2": 2013, "fsdp": 15.6}),
)

_TITAN = "torchtitan, docs/performance.md at 0413364, 64 A100"
_MOSAIC = "MosaicML llm-foundry, scripts/train/benchmarking/README.md at 061f2c7, H100"
_NEMO = "NVIDIA NeMo 24.12, performance summary, H100, FP8"
_PALM = "PaLM, Chowdhery et al. 2022, table 3, 6144 TPU v4"
_FSDP = "PyTorch blog, Maximizing training throughput using PyTorch FSDP, March 2024, table 1, 128 A100"
_A100, _H100, _TPU4 = 312.0, 989.5, 275.0  # peak TFLOP/s in bfloat16 that the sources divide by

THROUGHPUTS: tuple[Throughput, ...] = (
    Throughput(_TITAN, "Llama 3 8B", 8192, 2904, 0.568 * _A100),
    Throughput(_TITAN, "Llama 3 8B", 8192, 2973, 0.582 * _A100),
    Throughput(_TITAN, "Llama 3 70B", 8192, 331, 0.517 * _A100),
    Throughput(_TITAN, "Llama 2 13B", 4096, 2162, 0.611 * _A100),
    Throughput(_TITAN, "Llama 2 70B", 4096, 355, 0.508 * _A100),
    Throughput(_MOSAIC, "MPT 70B", 2048, 1039, 0.4257 * _H100),
    Throughput(_MOSAIC, "MPT 30B", 2048, 2308, 0.4392 * _H100),
    Throughput(_MOSAIC, "MPT 30B", 8192, 1384, 0.2992 * _H100),
    Throughput(_MOSAIC, "MPT 13B", 2048, 4792, 0.3979 * _H100),
    Throughput(_MOSAIC, "MPT 7B", 2048, 10643, 0.4644 * _H100),
    Throughput(_MOSAIC, "MPT 7B", 8192, 6935, 0.3714 * _H100),
    Throughput(_MOSAIC, "MPT 3B", 2048, 24142, 0.4373 * _H100),
    Throughput(_MOSAIC, "MPT 1B", 8192, 29157, 0.3773 * _H100),
    Throughput(_NEMO, "Llama 2 7B", 4096, 16934, 780),
    Throughput(_NEMO, "Llama 2 13B", 4096, 8715, 760),
    Throughput(_NEMO, "Llama 2 70B", 4096, 1728, 768),
    Throughput(_NEMO, "Llama 3 8B", 8192, 12273, 711),
    Throughput(_NEMO, "Llama 3 70B", 8192, 1524, 734),
    Throughput(_FSDP, "Llama 2 7B", 4096, 3700, 0.57 * _A100),
    Throughput(_FSDP, "Llama 2 13B", 4096, 1800, 0.51 * _A100),
    Throughput(_FSDP, "Llama 2 70B", 4096, 370, 0.50 * _A100),
    Throughput(_PALM, "PaLM 540B", 2048, 238.3e3 / 6144, 0.462 * _TPU4),
)
