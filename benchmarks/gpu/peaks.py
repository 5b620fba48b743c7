"""What GPUs can do at most by their makers' data sheets: dense bf16 TFLOP/s (fp16 where there is no bf16) and GB/s.

Every entry is from the data sheet of that product, without sparsity. A device that is not here has no peak, and no MFU
is reported for it: measured roofs (roofs.py) are there for every device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Peak(NamedTuple):
    """Dense TFLOP/s in 16 bits, and GB/s of memory."""

    tflops: float
    gigabytes: float
    source: str


# Names as torch.cuda.get_device_name gives them, lower case, by their words. The first whose words all occur is taken,
# so narrow ones stand before wide ones.
PEAKS: Mapping[str, Peak] = MappingProxyType(
    {
        "gb200": Peak(2500, 8000, "NVIDIA GB200 NVL72 data sheet"),
        "b200": Peak(2250, 8000, "NVIDIA HGX B200 data sheet"),
        "h200": Peak(989, 4800, "NVIDIA H200 data sheet (SXM)"),
        "h100 nvl": Peak(835, 3900, "NVIDIA H100 data sheet"),
        "h100 pcie": Peak(756, 2000, "NVIDIA H100 data sheet"),
        "h100": Peak(989, 3350, "NVIDIA H100 data sheet (SXM)"),
        "a100 pcie 80gb": Peak(312, 1935, "NVIDIA A100 data sheet"),
        "a100 sxm4 80gb": Peak(312, 2039, "NVIDIA A100 data sheet"),
        "l40s": Peak(362, 864, "NVIDIA L40S data sheet"),
        "l4": Peak(121, 300, "NVIDIA L4 data sheet"),
        "a40": Peak(149.7, 696, "NVIDIA A40 data sheet"),
        "a10g": Peak(70, 600, "NVIDIA A10G, as on EC2 G5"),
        "v100": Peak(125, 900, "NVIDIA V100 data sheet (fp16)"),
        "rtx 3090": Peak(71, 936, "NVIDIA GA102 white paper"),
        "rtx 4090": Peak(165, 1008, "NVIDIA Ada white paper"),
        "rtx 5090": Peak(209.5, 1792, "NVIDIA RTX Blackwell white paper"),
    }
)


def peak_of(name: str) -> Peak | None:
    """The peak of the device that calls itself `name` ("NVIDIA H100 80GB HBM3"); None where it is not known."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    return next((peak for known, peak in PEAKS.items() if set(known.split()) <= words), None)
