"""Sample calls: one of each operation, with the sizes that a model gives it."""

from __future__ import annotations

import pytest
import torch

import autofuse.ops  # noqa: F401 - defines the operations
from autofuse.kernels.operation import OPERATIONS
from autofuse.ops.sample_calls import SAMPLES, Maker, Model, sample_call
from autofuse.verify.calls import FunctionCall
from autofuse.verify.functions import FunctionReference

SMALL = Model(batch=2, length=8, width=16, heads=2, vocabulary=20)
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_operation_has_a_sample_that_reaches_it(name: str) -> None:
    for training in (True, False):
        made = sample_call(name, SAMPLES[name].of_model(SMALL), Maker(torch.float32, CPU, training))
        assert made.operation is OPERATIONS[name]
        assert made.args[0].requires_grad == training


def test_a_model_gives_its_sizes() -> None:
    assert SAMPLES["rms_norm"].of_model(SMALL) == (16, 16)
    assert SAMPLES["attention"].of_model(SMALL) == (2, 2, 8, 8)
    assert SAMPLES["cross_entropy"].of_model(SMALL) == (16, 20)
    assert SMALL.inner == 64 and Model(hidden=100).inner == 100


def test_samples_leave_random_states_alone() -> None:
    before = torch.get_rng_state()
    sample_call("rms_norm", (4, 8), Maker(torch.bfloat16, CPU, True))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() & OPERATIONS.keys()))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_torchs_code_passes_the_check_of_candidates(name: str, dtype: torch.dtype) -> None:
    made = sample_call(name, SAMPLES[name].of_model(SMALL), Maker(dtype, CPU, True))
    code = made.operation.torch.run
    gap = FunctionReference(code, FunctionCall.of(made.args, made.kwargs, True)).compare(code)
    assert gap.error <= gap.bound
