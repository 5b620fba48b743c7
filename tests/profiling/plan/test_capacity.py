"""How much memory a device has, by its name or from the user."""

from __future__ import annotations

import pytest

from autofuse.profiling.plan.capacity import capacity_of, parse_capacity


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("NVIDIA H100", 80), ("NVIDIA H100 80GB HBM3", 80), ("NVIDIA H100 NVL", 94), ("NVIDIA H200", 141),
        ("NVIDIA A100-SXM4-40GB", 40), ("NVIDIA A100-SXM4-80GB", 80), ("Tesla V100-SXM2-16GB", 16), ("NVIDIA L4", 24),
        ("NVIDIA L40S", 48), ("NVIDIA A10G", 24), ("NVIDIA GeForce RTX 4090", 24), ("AMD Instinct MI300X", 192),
    ],
)  # fmt: skip
def test_devices_are_known_by_the_names_that_torch_gives_them(name: str, gigabytes: int) -> None:
    assert capacity_of(name).bytes == gigabytes * 10**9


@pytest.mark.parametrize("name", ["NVIDIA A100", "NVIDIA L400", "cpu", "", "NVIDIA GeForce RTX 4090 Laptop GPU"])
def test_an_ambiguous_name_is_refused_with_advice(name: str) -> None:
    with pytest.raises(ValueError, match="--memory 80GiB"):
        capacity_of(name)


@pytest.mark.parametrize(
    ("text", "size"), [("80GiB", 80 * 2**30), ("24 GB", 24 * 10**9), ("1.5g", 1_500_000_000), ("512MiB", 2**29)]
)
def test_amounts_are_read_with_their_units(text: str, size: int) -> None:
    assert parse_capacity(text).bytes == size


@pytest.mark.parametrize("text", ["", "much", "-3GiB", "80 parsecs", "0GiB"])
def test_other_text_is_not_an_amount(text: str) -> None:
    with pytest.raises(ValueError, match="80GiB"):
        parse_capacity(text)
