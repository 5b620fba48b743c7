"""The memory of a device, from its maker's data sheet or from the user. Does not need torch."""

from __future__ import annotations

import re

from autofuse.results.plan import Capacity

_GIB = 2**30
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "ki": 2**10, "mi": 2**20, "gi": _GIB, "ti": 2**40}

# A chip that is sold with several memory sizes is only known by the size in its name.
_SHEETS: tuple[tuple[str, int, str], ...] = (
    (r"h100 nvl", 94, "NVIDIA H100 Tensor Core GPU data sheet"),
    (r"h100", 80, "NVIDIA H100 Tensor Core GPU data sheet"),
    (r"h200", 141, "NVIDIA H200 Tensor Core GPU data sheet"),
    (r"l40s?", 48, "NVIDIA L40S data sheet"),
    (r"l4", 24, "NVIDIA L4 data sheet"),
    (r"a40", 48, "NVIDIA A40 data sheet"),
    (r"a10g?", 24, "NVIDIA A10 data sheet"),
    (r"(rtx )?4090", 24, "NVIDIA GeForce RTX 4090 specifications"),
    (r"(rtx )?3090", 24, "NVIDIA GeForce RTX 3090 specifications"),
    (r"(rtx )?5090", 32, "NVIDIA GeForce RTX 5090 specifications"),
    (r"mi300x", 192, "AMD Instinct MI300X data sheet"),
    (r"mi250x", 64, "AMD Instinct MI250X data sheet, one of its two dies"),
)
_VARIANT = r"( (sxm\d?|pcie|nvl|hbm\d?e?))*"
_IN_NAME = re.compile(r"(?<!\d)(\d{2,3}) ?gb\b")


def capacity_of(device: str) -> Capacity:
    """The memory of a device by its name, such as "NVIDIA H100 80GB HBM3".

    Raises:
        ValueError: the memory of this device is not known.
    """
    words = re.sub(r"[^a-z0-9]+", " ", device.lower())
    words = re.sub(r"\b(nvidia|amd|tesla|geforce|instinct|radeon)\b", " ", words).strip()
    if said := _IN_NAME.search(words):
        return Capacity(int(said[1]) * 10**9, device, "from its name")
    for pattern, gigabytes, source in _SHEETS:
        if re.fullmatch(rf"({pattern}){_VARIANT}", words):
            return Capacity(gigabytes * 10**9, device, source)
    raise ValueError(f"The memory of {device!r} is not known. Pass it: --memory 80GiB.")


def parse_capacity(text: str) -> Capacity:
    """The capacity that a text such as "80GiB", "24 GB" or "512MiB" means.

    Raises:
        ValueError: the text is not an amount of memory.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise ValueError(f"{text!r} is not an amount of memory. Write 80GiB, for example.")
    return Capacity(int(float(match[1]) * _UNITS[match[2]]), "", "as given")
