"""The user's preferences: by default, from the environment, for a process and for a block."""

from __future__ import annotations

import pytest
import torch

from autofuse.kernels.policy import KernelSettings, from_environment, on_change, settings, use, using


def test_speed_and_all_providers_are_the_default() -> None:
    assert from_environment({}) == KernelSettings("speed", deterministic=False, providers=None, measured=True)


def test_the_environment_is_read() -> None:
    found = from_environment(
        {"AUTOFUSE_POLICY": "Memory", "AUTOFUSE_PROVIDERS": "triton, liger", "AUTOFUSE_MEASURED": "0"}
    )
    assert found == KernelSettings("memory", providers=frozenset({"triton", "liger"}), measured=False)


def test_plain_torch_code_cannot_be_excluded() -> None:
    wishes = KernelSettings(providers=frozenset({"triton"}))
    assert wishes.allows("torch") and wishes.allows("triton")
    assert not wishes.allows("liger")


def test_an_unknown_policy_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"AUTOFUSE_POLICY has the unknown value 'fast'.*speed, memory, accuracy"):
        from_environment({"AUTOFUSE_POLICY": "fast"})
    with pytest.raises(ValueError, match="Unknown policy 'fast'"):
        use(policy="fast")  # type: ignore[arg-type]


def test_a_block_restores_the_settings_also_after_an_error() -> None:
    before = settings()
    with pytest.raises(RuntimeError), using(policy="accuracy", providers=["triton"]) as inside:
        assert inside is settings()
        assert inside.policy == "accuracy" and inside.providers == {"triton"}
        raise RuntimeError
    assert settings() is before


def test_settings_that_are_not_named_stay() -> None:
    with using(policy="memory"), using(deterministic=True):
        assert settings().policy == "memory"


def test_listeners_are_called_for_changes_only() -> None:
    heard = list[str]()
    on_change(lambda: heard.append(settings().policy))
    with using(policy="memory"), using(policy="memory"):
        pass
    assert heard == ["memory", "speed"]


def test_torchs_deterministic_mode_counts() -> None:
    assert not KernelSettings().repeatable
    assert KernelSettings(deterministic=True).repeatable
    torch.use_deterministic_algorithms(True)
    try:
        assert KernelSettings().repeatable
    finally:
        torch.use_deterministic_algorithms(False)
