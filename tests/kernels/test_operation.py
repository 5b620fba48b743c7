"""An operation chooses a provider that supports the call, and reports providers that it excludes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autofuse.kernels import operation as operation_module
from autofuse.kernels.operation import OPERATIONS, Operation, record_calls
from autofuse.kernels.packages import TORCH, Package
from autofuse.kernels.policy import using
from autofuse.kernels.provider import Provider

ABSENT = Package("absent", lambda: "It is not installed.", "pip install it")


def _provider(name: str, run: object, **more: object) -> Provider:
    return Provider("doubled", name, more.pop("package", TORCH), run, "Adds.", "Torch's.", **more)  # type: ignore[arg-type]


@pytest.fixture
def make_operation(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setattr(operation_module, "OPERATIONS", dict(OPERATIONS))

    def make(*providers: Provider) -> Operation:
        return Operation("doubled", (*providers, _provider("torch", lambda x: x + x)), least=4)

    return make


def _twice(x: Tensor) -> Tensor:
    return x * 2


def test_a_default_comes_before_torch_if_it_supports_the_call(make_operation) -> None:  # type: ignore[no-untyped-def]
    doubled = make_operation(
        _provider("own", _twice, default=True, check=lambda x: "" if x.ndim == 1 else "Only vectors.")
    )
    doubled(torch.ones(8))
    doubled(torch.ones(4, 2))
    assert doubled.counts == {"own": 1, "torch": 1}


@pytest.mark.parametrize(
    "more",
    [
        {"package": ABSENT},
        {"devices": ("cuda",)},
        {"dtypes": (torch.bfloat16,)},
        {"default": False},
    ],
)
def test_missing_providers_and_other_devices_and_unmeasured_providers_are_not_checked(make_operation, more) -> None:  # type: ignore[no-untyped-def]
    doubled = make_operation(_provider("own", _twice, **{"default": True} | more))
    doubled(torch.ones(8))
    assert "own" not in doubled.counts


def test_a_provider_that_raises_changes_only_the_choice(make_operation) -> None:  # type: ignore[no-untyped-def]
    def broken(x: Tensor) -> Tensor:
        raise TypeError("unexpected keyword")

    doubled = make_operation(_provider("own", broken, default=True))
    for _ in range(2):
        assert torch.equal(doubled(torch.ones(8)), torch.full((8,), 2.0))
    assert doubled.failures == {"own": "It raised TypeError: unexpected keyword"}


def test_the_early_stop_of_a_checkpoint_is_not_a_failure(make_operation) -> None:  # type: ignore[no-untyped-def]
    doubled = make_operation(_provider("own", lambda x: x.exp(), default=True))
    x = torch.ones(8, requires_grad=True)
    checkpoint(doubled, x, use_reentrant=False).sum().backward()
    assert not doubled.failures


def test_small_and_double_and_transformed_calls_go_to_torch(make_operation) -> None:  # type: ignore[no-untyped-def]
    doubled = make_operation(_provider("own", _twice, default=True))
    doubled(torch.ones(2))
    doubled(torch.ones(8, dtype=torch.float64))
    torch.func.vmap(doubled)(torch.ones(2, 8))
    torch.func.jvp(doubled, (torch.ones(8),), (torch.ones(8),))
    torch.compile(doubled, backend="eager", fullgraph=True)(torch.ones(8))
    assert "own" not in doubled.counts


def test_deterministic_mode_excludes_nondeterministic_providers(make_operation) -> None:  # type: ignore[no-untyped-def]
    doubled = make_operation(_provider("own", _twice, default=True, deterministic=False))
    doubled(torch.ones(8))
    torch.use_deterministic_algorithms(True)
    try:
        doubled(torch.ones(8))
    finally:
        torch.use_deterministic_algorithms(False)
    assert doubled.counts == {"own": 1, "torch": 1}


def test_the_settings_restrict_the_providers(make_operation) -> None:  # type: ignore[no-untyped-def]
    doubled = make_operation(_provider("own", _twice, default=True))
    with using(providers=("torch", "liger")):
        doubled(torch.ones(8))
        refusal = doubled.refusal(doubled.provider("own"), doubled.kind(torch.ones(8)), torch.float32)
    assert doubled.counts == {"torch": 1}
    assert "AUTOFUSE_PROVIDERS" in refusal
    doubled(torch.ones(8))
    assert doubled.counts == {"torch": 1, "own": 1}


def test_measured_providers_come_first_and_torch_comes_last(make_operation, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    doubled = make_operation(_provider("own", _twice, default=True), _provider("other", _twice))
    monkeypatch.setattr(operation_module, "measured_ranking", lambda kind: ("other", "absent", "torch", "own"))
    doubled(torch.ones(8))
    assert doubled.counts == {"other": 1}
    assert [p.name for p in doubled._order(torch.ones(8))] == ["other", "torch"]


def test_calls_are_recorded_within_a_block_and_only_there(make_operation) -> None:  # type: ignore[no-untyped-def]
    doubled, x = make_operation(), torch.ones(8)
    with record_calls() as outer:
        doubled(x)
        with record_calls() as inner:
            doubled(torch.ones(2))
    doubled(x)
    assert [(m.operation, m.args[0].numel(), m.kwargs) for m in outer] == [(doubled, 8, {}), (doubled, 2, {})]
    assert len(inner) == 1


def test_the_state_of_autocast_is_read_at_each_call(make_operation) -> None:  # type: ignore[no-untyped-def]
    def outside(x: Tensor) -> str:
        return "It computes outside of autocast." if torch.is_autocast_enabled("cpu") else ""

    doubled = make_operation(_provider("own", _twice, default=True, check=outside))
    doubled(torch.ones(8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        doubled(torch.ones(8))
    doubled(torch.ones(8))
    assert doubled.counts == {"own": 2, "torch": 1}


def test_calls_with_unhashable_arguments_go_to_torch(make_operation) -> None:  # type: ignore[no-untyped-def]
    doubled = make_operation(_provider("own", lambda x, sizes=None: x * 2, default=True))
    doubled.torch = _provider("torch", lambda x, sizes=None: x + x)
    assert torch.equal(doubled(torch.ones(8), [1, 2]), torch.full((8,), 2.0))
    assert "own" not in doubled.counts
