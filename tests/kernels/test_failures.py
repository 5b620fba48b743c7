"""A provider that failed is excluded from calls of that kind on that device, and from no others."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from autofuse.kernels import operation as operation_module
from autofuse.kernels.failures import Failures, call_kind
from autofuse.kernels.operation import OPERATIONS, Operation
from autofuse.kernels.packages import TORCH, Unavailable
from autofuse.kernels.provider import Provider


def _doubling(run: object, monkeypatch: pytest.MonkeyPatch) -> Operation:
    monkeypatch.setattr(operation_module, "OPERATIONS", dict(OPERATIONS))
    own = Provider("doubled", "own", TORCH, run, "", "", default=True)  # type: ignore[arg-type]
    return Operation("doubled", (own, Provider("doubled", "torch", TORCH, lambda x: x + x, "", "")), least=4)


CALLS = {
    "another dtype": lambda: torch.ones(8, dtype=torch.bfloat16),
    "another width": lambda: torch.ones(2, 4),
    "many more elements": lambda: torch.ones(64, 8),
    "training": lambda: torch.ones(8, requires_grad=True),
}


@pytest.mark.parametrize("other", CALLS.values(), ids=CALLS)
def test_a_failure_at_one_kind_of_call_leaves_the_others(other, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    failing = call_kind([torch.ones(8)], (4, 8))

    def own(x: Tensor) -> Tensor:
        if call_kind([x], (x.numel().bit_length(), x.shape[-1])) == failing:
            raise RuntimeError("out of registers")
        return x * 2

    doubled = _doubling(own, monkeypatch)
    for _ in range(2):
        assert torch.equal(doubled(torch.ones(8)), torch.full((8,), 2.0))
    assert doubled.counts == {"torch": 2}
    doubled(other())
    assert doubled.counts == {"torch": 2, "own": 1}
    assert doubled.failures == {"own": "It raised RuntimeError: out of registers"} and not doubled.failure("own")


def test_an_unusable_package_gets_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(x: Tensor) -> Tensor:
        raise Unavailable("It has no such function.")

    doubled = _doubling(own, monkeypatch)
    doubled(torch.ones(8))
    doubled(torch.ones(64, 8))
    assert doubled.counts == {"torch": 2} and doubled.failure("own") == "It has no such function."


def test_calls_on_two_devices_are_two_kinds() -> None:
    """The meta device stands for a second one."""
    here, there = call_kind([torch.ones(8)], (4, 8)), call_kind([torch.ones(8, device="meta")], (4, 8))
    assert here == ("cpu", "float32", "4x8", "inference") and there[0] == "meta"
    failures = Failures("doubled")
    failures.add("own", "It spills.", there)
    assert failures.at("own", there) == "It spills." and not failures.at("own", here) and not failures.for_all("own")
    assert failures.last_reasons() == {"own": "It spills."}


def test_the_log_says_which_calls_are_excluded(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "autofuse"):
        Failures("doubled").add("own", "It spills.", ("cuda:1", "bfloat16", "4x8", "training"))
        Failures("doubled").add("own", "It is broken.", None)
    assert [r.getMessage() for r in caplog.records] == [
        "autofuse.ops.doubled no longer uses own for cuda:1 bfloat16 4x8 training: It spills.",
        "autofuse.ops.doubled no longer uses own: It is broken.",
    ]
