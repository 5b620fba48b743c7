"""Tests of the description of versions and hardware."""

from __future__ import annotations

import platform

import torch

from autofuse.measure.environment import environment


def test_the_environment_contains_versions_and_hardware() -> None:
    description = environment(torch.device("cpu"))
    assert description["torch"] == torch.__version__
    assert description["threads"] == str(torch.get_num_threads())
    assert description["device"] == "cpu"
    assert all(value for value in description.values())


def test_the_environment_does_not_contain_the_host_name() -> None:
    host = platform.node()
    assert not host or host not in environment(torch.device("cpu")).values()
