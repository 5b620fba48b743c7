"""The listing of packages and providers, and of the providers that calls used in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import autofuse.ops  # noqa: F401 - defines the operations
from autofuse.kernels import decisions
from autofuse.kernels import operation as operation_module
from autofuse.kernels.listing import listing, provider_uses
from autofuse.kernels.operation import OPERATIONS, Operation
from autofuse.kernels.packages import TORCH, Package
from autofuse.kernels.policy import using
from autofuse.kernels.provider import Provider
from autofuse.results.tuning import TuningResult


def _twice(x: Tensor) -> Tensor:
    return x * 2


def _broken(x: Tensor) -> Tensor:
    raise RuntimeError("no image")


def _even(x: Tensor) -> str:
    """It takes an even
    number of entries."""
    return "" if x.numel() % 2 == 0 else "It takes an even number of entries."


def _make_operation(*providers: Provider) -> Operation:
    return Operation(
        "doubled", (*providers, Provider("doubled", "torch", TORCH, _twice, "Doubles.", "Torch's.")), least=4
    )


@pytest.fixture(autouse=True)
def _only_this_operation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(operation_module, "OPERATIONS", {})
    monkeypatch.setattr("autofuse.kernels.listing.OPERATIONS", operation_module.OPERATIONS)
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path))
    decisions.forget()


def test_an_entry_says_what_is_missing_what_is_refused_and_what_is_a_default() -> None:
    absent = Package("absent", lambda: "It is not installed.", "pip install it")
    _make_operation(
        Provider("doubled", "own", TORCH, _twice, "Ours.", "Ours.", _even, default=True),
        Provider("doubled", "other", absent, _twice, "Theirs.", "Theirs.", deterministic=False),
        Provider("doubled", "far", TORCH, _twice, "Far.", "Far.", devices=("nowhere",)),
    )
    (entry,) = listing().operations
    own, other, far, torch_code = entry.providers
    assert own.available and own.default and own.refuses == "It takes an even number of entries."
    assert not other.available and other.reason == "It is not installed." and not other.default
    assert far.reason == "It runs on nowhere, which this machine does not have."
    assert torch_code.available and torch_code.default and torch_code.refuses == ""
    assert "Not deterministic." in str(listing(["doubled"]))
    with pytest.raises(ValueError, match=r"There is no operation 'halved'\. Use one of doubled"):
        listing(["halved"])


def test_the_providers_of_calls_are_counted_with_the_reason() -> None:
    operation = _make_operation(
        Provider("doubled", "broken", TORCH, _broken, "", "", default=True),
        Provider("doubled", "own", TORCH, _twice, "", "", default=True),
    )
    assert provider_uses() == ()
    operation(torch.ones(2))  # small: no provider is asked
    assert provider_uses() == ()
    operation(torch.ones(8))
    operation(torch.ones(8))
    (found,) = provider_uses()
    assert found.counts == {"own": 2}
    assert found.failures == {"broken": "It raised RuntimeError: no image"}
    assert found.decided == {"cpu float32 4x8 inference": "own, then torch: the defaults"}


def test_the_reason_of_a_measurement_is_listed() -> None:
    operation = _make_operation(Provider("doubled", "own", TORCH, _twice, "", "", default=True))
    with using(measured=True):
        kind = operation.kind(torch.ones(8))
        decisions.decide(
            kind, TuningResult("doubled", "torch", "It is the fastest.", ranking=("torch", "own"), measured=True)
        )
        operation(torch.ones(8))
        (found,) = provider_uses()
    assert found.counts == {"torch": 1}
    assert found.decided == {"cpu float32 4x8 inference": "torch: measured. It is the fastest."}


def test_every_operation_can_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofuse.kernels.listing.OPERATIONS", OPERATIONS)
    found = listing()
    assert [o.operation for o in found.operations] == sorted(OPERATIONS)
    assert found.to_dict()["version"] == 1
    for name in OPERATIONS:
        assert name in str(found)
