"""The peaks of accelerators, from the makers' data sheets. No torch, and no measurements.

Rates are dense (data sheets often quote twice the rate, for sparse operands), accumulate in float32, and refer to the
boost clock. Only whole names match. For a laptop's chip, a slice of a chip (MIG) or an unlisted chip there is no entry;
then the machine itself must be measured (profiling/live/roofs.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DevicePeak:
    """The peak of one kind of device.

    device: our name of it.
    flops: FLOP/s by torch's dtype names. "tensorfloat32" is float32 whose operands tensor cores round.
    bytes_per_second: of its memory.
    multiprocessors: SMs, or AMD's compute units; None if the source does not say.
    source: the document that states these numbers.
    """

    device: str
    flops: Mapping[str, float]
    bytes_per_second: float
    multiprocessors: int | None
    source: str


def peak_of(device_name: str) -> DevicePeak | None:
    """Return the entry for a device name from torch.cuda.get_device_name or a trace; None if there is none.

    Examples of names: "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "AMD Instinct MI300X".
    """
    name = _normalized_name(device_name)
    return next((peak for pattern, peak in _TABLE if re.fullmatch(pattern, name)), None)


def override_peak(flops: float | None, bytes_per_second: float | None, known: DevicePeak | None) -> DevicePeak | None:
    """Return the peak with the user's values in place of the known ones; None if neither is given.

    Args:
        flops: FLOP/s for every dtype; None keeps the known rates.
        bytes_per_second: Of the memory; None keeps the known rate.
        known: The entry of the table, if there is one.
    """
    if flops is None and bytes_per_second is None:
        return known
    rates = known.flops if known is not None else {}
    return DevicePeak(
        known.device if known else "the device",
        rates if flops is None else dict.fromkeys(_DTYPES, flops),
        bytes_per_second or (known.bytes_per_second if known else 0.0),
        known.multiprocessors if known else None,
        known.source if known and flops is None else "--peak-flops",
    )


_DTYPES = ("float16", "bfloat16", "tensorfloat32", "float32", "float64", "float8")


def _normalized_name(name: str) -> str:
    """Return the name in lower case, with single blanks, and without makers and brands, which vary between drivers."""
    words = re.sub(r"[^a-z0-9]+", " ", re.sub(r"\((tm|r)\)", " ", name.lower())).split()
    return " ".join(word for word in words if word not in _BRANDS)


_BRANDS = ("nvidia", "amd", "tesla", "geforce", "quadro", "instinct", "radeon", "corporation")


def _entry(
    pattern: str, device: str, half: float, gigabytes: float, units: int | None, source: str, *,
    tf32: float | None = None, single: float | None = None, double: float | None = None, bfloat16: bool = True,
) -> tuple[str, DevicePeak]:  # fmt: skip
    """`half`, `tf32`, `single`, `double`: TFLOP/s of float16 (and bfloat16), tensorfloat32, float32 and float64."""
    rates = {
        "float16": half, "bfloat16": half if bfloat16 else None, "tensorfloat32": tf32, "float32": single,
        "float64": double,
    }  # fmt: skip
    flops = {dtype: rate * 1e12 for dtype, rate in rates.items() if rate is not None}
    return pattern, DevicePeak(device, flops, gigabytes * 1e9, units, source)


_PASCAL = "NVIDIA Tesla P100 GPU accelerator data sheet"
_VOLTA = "NVIDIA V100 Tensor Core GPU data sheet"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet"
_GA102 = "NVIDIA Ampere GA102 GPU architecture white paper"
_ADA = "NVIDIA Ada GPU architecture white paper"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet"
_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture white paper"
_CDNA2 = "AMD CDNA 2 architecture white paper"
_CDNA3 = "AMD CDNA 3 architecture white paper"
# 256 compute units of 4096 FLOP a cycle in float16, at 2.2 GHz (MI350X) and 2.4 GHz (MI355X).
_CDNA4 = "AMD CDNA 4, compute units and peak clocks as shown at Hot Chips 2025"
# NVIDIA publishes no data sheets of the chips that it sells in China only. These are the figures of its product briefs,
# as resellers and measurements quote them.
_CHINA = "NVIDIA {} product brief, as quoted"
_RTX_PRO = "NVIDIA RTX PRO Blackwell GPU architecture white paper"

# A pattern must match the whole name, so longer and shorter names cannot be confused.
_TABLE: tuple[tuple[str, DevicePeak], ...] = (
    _entry(r"p100 sxm2( 16gb)?", "P100 SXM2", 21.2, 732, 56, _PASCAL, single=10.6, double=5.3, bfloat16=False),
    _entry(r"p100 pcie( 16gb)?", "P100 PCIe", 18.7, 732, 56, _PASCAL, single=9.3, double=4.7, bfloat16=False),
    _entry(r"v100 sxm2( 16gb| 32gb)?", "V100 SXM2", 125, 900, 80, _VOLTA, single=15.7, double=7.8, bfloat16=False),
    _entry(r"v100 pcie( 16gb| 32gb)?", "V100 PCIe", 112, 900, 80, _VOLTA, single=14, double=7, bfloat16=False),
    _entry(
        r"v100s pcie( 32gb)?", "V100S PCIe", 130, 1134, 80, _VOLTA, single=16.4, double=8.2, bfloat16=False
    ),
    _entry(r"t4", "T4", 65, 320, 40, "NVIDIA Turing GPU architecture white paper", single=8.1, bfloat16=False),
    _entry(r"a[18]00 sxm4 40gb", "A100 SXM4 40 GB", 312, 1555, 108, _A100, tf32=156, single=19.5),
    _entry(r"a[18]00 sxm4 80gb", "A100 SXM4 80 GB", 312, 2039, 108, _A100, tf32=156, single=19.5),
    _entry(r"(a100 )?pg509 2\d\d", "A100 PG509, 40 GB", 312, 1555, 108, _A100, tf32=156, single=19.5),
    _entry(r"a100 pcie 40gb", "A100 PCIe 40 GB", 312, 1555, 108, _A100, tf32=156, single=19.5),
    _entry(r"a[18]00 (80gb pcie|pcie 80gb)", "A100 PCIe 80 GB", 312, 1935, 108, _A100, tf32=156, single=19.5),
    _entry(r"a30", "A30", 165, 933, 56, "NVIDIA A30 Tensor Core GPU data sheet", tf32=82, single=10.3),
    _entry(r"a40", "A40", 149.7, 696, 84, "NVIDIA A40 data sheet", tf32=74.8, single=37.4),
    _entry(r"a10", "A10", 125, 600, 72, "NVIDIA A10 Tensor Core GPU data sheet", tf32=62.5, single=31.2),
    _entry(r"a10g", "A10G", 70, 600, 80, "NVIDIA A10G data sheet", tf32=35, single=35),
    _entry(r"rtx a6000", "RTX A6000", 154.8, 768, 84, _GA102, tf32=77.4, single=38.7),
    _entry(r"a2", "A2", 18, 200, 10, "NVIDIA A2 Tensor Core GPU data sheet", tf32=9, single=4.5),
    _entry(r"rtx a5000", "RTX A5000", 111.1, 768, 64, "NVIDIA RTX A5000 data sheet", tf32=55.6, single=27.8),
    _entry(r"rtx 3080", "RTX 3080", 59.5, 760, 68, _GA102, tf32=29.8, single=29.8),
    _entry(r"rtx 3090", "RTX 3090", 71, 936, 82, _GA102, tf32=35.6, single=35.6),
    _entry(r"l4", "L4", 121, 300, 58, "NVIDIA L4 Tensor Core GPU data sheet", tf32=60, single=30.3),
    _entry(r"l40", "L40", 181, 864, 142, "NVIDIA L40 data sheet", tf32=90.5, single=90.5),
    _entry(r"l40s", "L40S", 362, 864, 142, "NVIDIA L40S data sheet", tf32=183, single=91.6),
    _entry(r"rtx 4090", "RTX 4090", 165.2, 1008, 128, _ADA, tf32=82.6, single=82.6),
    _entry(r"rtx 4080", "RTX 4080", 97.5, 716.8, 76, _ADA, tf32=48.7, single=48.7),
    _entry(
        r"rtx 6000 ada generation", "RTX 6000 Ada", 364.2, 960, 142, "NVIDIA RTX 6000 Ada Generation data sheet",
        tf32=182.1, single=91.1,
    ),
    _entry(r"rtx 5090", "RTX 5090", 209.5, 1792, 170, _BLACKWELL, tf32=104.8, single=104.8),
    _entry(
        r"h[18]00( 80gb hbm3| sxm5?( 80gb)?)?", "H100 SXM", 989.4, 3350, 132, _H100, tf32=494.7, single=66.9,
        double=66.9,
    ),
    _entry(r"h[18]00 pcie", "H100 PCIe", 756, 2000, 114, _H100, tf32=378, single=51, double=51),
    _entry(r"h100 nvl", "H100 NVL", 835, 3900, 132, _H100, tf32=417.5, single=60, double=60),
    _entry(r"h200( sxm)?", "H200 SXM", 989.4, 4800, 132, _H200, tf32=494.7, single=66.9, double=66.9),
    _entry(r"h200 nvl", "H200 NVL", 835.5, 4800, 132, _H200, tf32=417.5, single=60, double=60),
    _entry(r"h20", "H20", 148, 4000, 78, _CHINA.format("H20"), tf32=74, single=44, double=1),
    _entry(r"l20", "L20", 119.5, 864, 92, _CHINA.format("L20"), tf32=59.8, single=59.8),
    _entry(
        r"rtx pro 6000 blackwell workstation edition", "RTX PRO 6000 Blackwell", 503.8, 1792, 188, _RTX_PRO,
        tf32=251.9, single=126,
    ),
    _entry(
        r"gh200 480gb", "GH200, 96 GB of HBM3", 989.4, 4000, 132, "NVIDIA GH200 Grace Hopper Superchip data sheet",
        tf32=494.7, single=66.9, double=66.9,
    ),
    _entry(
        r"gh200 144g hbm3e", "GH200, 144 GB of HBM3e", 989.4, 4900, 132,
        "NVIDIA GH200 Grace Hopper Superchip data sheet", tf32=494.7, single=66.9, double=66.9,
    ),
    _entry(r"b200", "B200", 2250, 8000, 148, "NVIDIA DGX B200 data sheet", tf32=1125, single=75),
    _entry(r"gb200", "GB200", 2500, 8000, None, "NVIDIA GB200 NVL72 data sheet", tf32=1250, single=80),
    # A system of 8 of them: 36 PFLOP/s of float16 with sparsity, 18 of tensorfloat32, 600 TFLOP/s of float32.
    _entry(
        r"b300( sxm6( ac)?)?", "B300", 2250, 8000, None, "NVIDIA HGX B300 data sheet", tf32=1125, single=75, double=1.25
    ),
    # A rack of 72: 360 PFLOP/s of float16 with sparsity, 576 TB/s.
    _entry(r"gb300", "GB300", 2500, 8000, None, "NVIDIA GB300 NVL72 data sheet", tf32=1250, single=80, double=1.3),
    _entry(r"mi210", "MI210", 181, 1638.4, 104, _CDNA2, single=45.3, double=45.3),
    # A program sees each of the two dies of these as a device of its own.
    _entry(r"mi250", "MI250, one die", 181, 1638.4, 104, _CDNA2, single=45.3, double=45.3),
    _entry(r"mi250x( mi250)?", "MI250X, one die", 191.5, 1638.4, 110, _CDNA2, single=47.9, double=47.9),
    _entry(r"mi300a", "MI300A", 980.6, 5300, 228, _CDNA3, tf32=490.3, single=122.6, double=122.6),
    _entry(r"mi300x( vf)?", "MI300X", 1307.4, 5300, 304, _CDNA3, tf32=653.7, single=163.4, double=163.4),
    _entry(r"mi350x( vf)?", "MI350X", 2306.9, 8000, 256, _CDNA4, single=144.2, double=72.1),
    _entry(r"mi355x( vf)?", "MI355X", 2516.6, 8000, 256, _CDNA4, single=157.3, double=78.6),
    _entry(
        r"mi325x( vf)?", "MI325X", 1307.4, 6000, 304, "AMD Instinct MI325X data sheet", tf32=653.7, single=163.4,
        double=163.4,
    ),
)  # fmt: skip
