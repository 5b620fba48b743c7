"""Requirements of other packages' kernels for devices and contexts, on tensors of an absent GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.kernels import flash_attn, flash_attn_cute, flash_attn_parts, quack, requirements
from autofuse.kernels import package_providers as others
from autofuse.kernels.provider import Provider

Make = Callable[..., Tensor]


@pytest.fixture
def on_gpu() -> Iterator[Make]:
    """Tensors without data on a GPU, in bf16."""
    with FakeTensorMode():
        yield lambda *shape, grad=False: torch.empty(shape, device="cuda", dtype=torch.bfloat16, requires_grad=grad)


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Sets the compute capability of the GPU."""

    def set_capability(*version: int) -> None:
        monkeypatch.setattr(requirements, "_capability", lambda _: version)

    return set_capability


def _of(module: object, operation: str) -> Provider:
    return next(p for p in module.PROVIDERS if p.operation == operation)  # type: ignore[attr-defined]


def test_attention_requires_its_devices(on_gpu: Make, capability: Callable[..., None]) -> None:
    two, four = _of(flash_attn, "attention"), _of(flash_attn_cute, "attention")
    query, trained = on_gpu(2, 4, 128, 64), on_gpu(2, 4, 128, 64, grad=True)
    for version, by_two, by_four, by_four_in_training in (
        ((7, 5), False, False, False),
        ((8, 0), True, True, False),
        ((9, 0), True, True, True),
        ((10, 0), True, True, True),
        ((12, 0), True, True, True),
    ):
        capability(*version)
        assert (two.check(query, query, query) == "") == by_two
        assert (four.check(query, query, query) == "") == by_four
        assert (four.check(trained, trained, trained) == "") == by_four_in_training


def test_wide_heads_are_supported_if_there_is_a_kernel_for_them(on_gpu: Make, capability: Callable[..., None]) -> None:
    two, four = _of(flash_attn, "attention"), _of(flash_attn_cute, "attention")
    wide, value = on_gpu(2, 4, 128, 192), on_gpu(2, 4, 128, 128)
    dropping = {"dropout_p": 0.1, "training": True}
    capability(8, 6)
    wider = on_gpu(2, 4, 128, 256)
    assert two.check(wider, wider, wider) == ""
    assert "of at most 192" in two.check(wider, wider, wider, **dropping)
    capability(9, 0)
    assert two.check(wider, wider, wider, **dropping) == four.check(wider, wider, wider) == ""
    capability(10, 0)
    assert four.check(wide, wide, value) == four.check(wider, wider, wider) == ""
    assert "at most 128" in four.check(wide, wide, wide)
    capability(12, 0)
    assert "at most 128" in four.check(wide, wide, value)


def test_calls_that_a_library_does_not_compute_itself_are_refused(
    on_gpu: Make, capability: Callable[..., None]
) -> None:
    x, up, down = on_gpu(256, 128), on_gpu(512, 128), on_gpu(128, 512)
    mlp = _of(flash_attn_parts, "mlp")
    capability(8, 0)
    assert mlp.check(x, up, None, down, None, activation="gelu_tanh") == ""
    assert "9.0" in _of(quack, "mlp").check(x, up, None, down, None, activation="gelu_tanh")
    capability(9, 0)
    assert "runs unfused" in mlp.check(x, up, None, down, None, activation="gelu_tanh")
    assert _of(quack, "mlp").check(x, up, None, down, None, activation="gelu_tanh") == ""


def test_deterministic_algorithms_are_requested_or_refused(on_gpu: Make, capability: Callable[..., None]) -> None:
    query = on_gpu(2, 4, 128, 64)
    capability(12, 0)
    torch.use_deterministic_algorithms(True)
    try:
        assert "not deterministic" in _of(flash_attn_cute, "attention").check(query, query, query)
    finally:
        torch.use_deterministic_algorithms(False)


def test_every_provider_of_other_packages_has_a_summary() -> None:
    for provider in others.PROVIDERS:
        assert provider.summary.endswith(".") and provider.gradient.endswith(".")
        assert provider.package.install
        assert set(provider.dtypes) <= {torch.float32, torch.float16, torch.bfloat16}
