"""What a measurement says about where it was made."""

from __future__ import annotations

import platform

import torch

from autofuse.measure.environment import environment


def test_versions_and_hardware_are_named() -> None:
    found = environment(torch.device("cpu"))
    assert found["torch"] == torch.__version__
    assert found["threads"] == str(torch.get_num_threads())
    assert found["device"] == "cpu"
    assert all(value for value in found.values())


def test_the_machines_name_stays_private() -> None:
    host = platform.node()
    assert not host or host not in environment(torch.device("cpu")).values()
