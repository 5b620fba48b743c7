"""Names of devices as drivers report them, and their entries."""

from __future__ import annotations

import pytest

from autofuse.profiling.peaks import peak_of


@pytest.mark.parametrize(
    ("name", "device", "tflops", "gigabytes"),
    [
        ("Tesla V100-SXM2-16GB", "V100 SXM2", 125, 900),
        ("Tesla V100-SXM2-32GB", "V100 SXM2", 125, 900),
        ("Tesla V100-PCIE-16GB", "V100 PCIe", 112, 900),
        ("Tesla T4", "T4", 65, 320),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40 GB", 312, 1555),
        ("A100-SXM4-40GB", "A100 SXM4 40 GB", 312, 1555),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80 GB", 312, 2039),
        ("NVIDIA A800-SXM4-80GB", "A100 SXM4 80 GB", 312, 2039),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40 GB", 312, 1555),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80 GB", 312, 1935),
        ("NVIDIA A40", "A40", 149.7, 696),
        ("NVIDIA A10", "A10", 125, 600),
        ("NVIDIA A10G", "A10G", 70, 600),
        ("NVIDIA RTX A6000", "RTX A6000", 154.8, 768),
        ("NVIDIA GeForce RTX 3090", "RTX 3090", 71, 936),
        ("GeForce RTX 3090", "RTX 3090", 71, 936),
        ("NVIDIA L4", "L4", 121, 300),
        ("NVIDIA L40", "L40", 181, 864),
        ("NVIDIA L40S", "L40S", 362, 864),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 165.2, 1008),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 364.2, 960),
        ("NVIDIA GeForce RTX 5090", "RTX 5090", 209.5, 1792),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 989.4, 3350),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756, 2000),
        ("NVIDIA H100 NVL", "H100 NVL", 835, 3900),
        ("NVIDIA H200", "H200 SXM", 989.4, 4800),
        ("NVIDIA H200 NVL", "H200 NVL", 835.5, 4800),
        ("NVIDIA GH200 480GB", "GH200, 96 GB of HBM3", 989.4, 4000),
        ("NVIDIA B200", "B200", 2250, 8000),
        ("NVIDIA GB200", "GB200", 2500, 8000),
        ("AMD Instinct MI250X", "MI250X, one die", 191.5, 1638.4),
        ("AMD Instinct MI250X / MI250", "MI250X, one die", 191.5, 1638.4),
        ("AMD Instinct MI300X", "MI300X", 1307.4, 5300),
        ("AMD Instinct MI300X VF", "MI300X", 1307.4, 5300),
        ("AMD Instinct MI355X", "MI355X", 2516.6, 8000),
        ("NVIDIA A100-PG509-200", "A100 PG509, 40 GB", 312, 1555),
        ("NVIDIA PG509-210", "A100 PG509, 40 GB", 312, 1555),
        ("NVIDIA H20", "H20", 148, 4000),
        ("NVIDIA L20", "L20", 119.5, 864),
        ("NVIDIA B300 SXM6 AC", "B300", 2250, 8000),
        ("NVIDIA GB300", "GB300", 2500, 8000),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell", 503.8, 1792),
        ("nvidia   h200 ", "H200 SXM", 989.4, 4800),
    ],
)
def test_a_devices_peaks_are_those_of_its_data_sheet(name: str, device: str, tflops: float, gigabytes: float) -> None:
    peak = peak_of(name)

    assert peak is not None
    assert peak.device == device
    assert peak.flops["float16"] == pytest.approx(tflops * 1e12)
    assert peak.bytes_per_second == pytest.approx(gigabytes * 1e9)
    assert peak.source


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "NVIDIA GeForce RTX 2080 with Max-Q Design",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA RTX A6000 Laptop GPU",
        "GRID A100X-40C",
        "NVIDIA A100X",
        "NVIDIA A16",
        "NVIDIA A16",
        "NVIDIA H20-3e",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA Graphics Device",
        "NVIDIA Tegra Orin",
        "Tesla K80",
        "Tesla K80",
        "NVIDIA GeForce GTX 1080 Ti",
        "AMD Radeon RX 7900 XTX",
        "AMD Instinct MI100",
        "Intel(R) Data Center GPU Max 1550",
        "Apple M2",
        "AMD EPYC 9654 96-Core Processor",
        "",
    ],
)
def test_slices_laptop_chips_and_unknown_chips_have_no_entry(name: str) -> None:
    assert peak_of(name) is None


def test_tensor_cores_of_volta_and_turing_know_no_bfloat16() -> None:
    for name in ("Tesla V100-SXM2-32GB", "Tesla T4"):
        peak = peak_of(name)
        assert peak is not None
        assert "bfloat16" not in peak.flops
        assert "tensorfloat32" not in peak.flops


def test_the_number_of_multiprocessors_is_there() -> None:
    known = {"NVIDIA H100 80GB HBM3": 132, "NVIDIA H100 PCIe": 114, "NVIDIA A100-SXM4-80GB": 108}
    for name, count in known.items():
        peak = peak_of(name)
        assert peak is not None
        assert peak.multiprocessors == count
