"""The compiled loops of norms against the formula in double. Each case is compiled, so there are few."""

from __future__ import annotations

import pytest
import torch

from autofuse.kernels.compiled import norm
from autofuse.kernels.packages import COMPILER
from tests.kernels.norms import EPS, SEED, Case, check

SINGLE, BRAIN, HALF = torch.float32, torch.bfloat16, torch.float16
CASES = {
    "everything": Case(64, 48, residual=True, p=0.3),
    "everything in bf16, an odd width, rows with gaps": Case(33, 50, BRAIN, centred=False, residual=True, p=0.3, gap=3),
    "a norm alone": Case(64, 48),
    "RMS norm alone, in fp16": Case(64, 33, HALF, centred=False, bias=False),
    "a residual in fp32": Case(32, 48, BRAIN, residual=True, residual_dtype=SINGLE, weight=False),
}


@pytest.fixture(autouse=True)
def a_compiler() -> None:
    if COMPILER.missing():
        pytest.skip(COMPILER.missing())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sums_norms_and_gradients(case: Case) -> None:
    check(norm, case)
    assert not COMPILER.missing()


@pytest.mark.night
def test_many_rows_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part is not full, and draws go on where those of the part before ended."""
    monkeypatch.setattr(norm, "_WHOLE", 64)
    monkeypatch.setattr(norm, "_PART", 64 * 48)
    check(norm, Case(160, 48, residual=True, p=0.3))
    assert not COMPILER.missing()


def test_dropout_drops_its_share_and_repeats() -> None:
    x, p = torch.ones(64, 500), 0.25
    run = lambda seed: norm.forward(x, None, None, None, torch.tensor([seed]), p, EPS, True, SINGLE, SINGLE)[1]
    total = run(SEED)
    share, deviation = (total == 0).float().mean().item(), (p * (1 - p) / x.numel()) ** 0.5
    assert abs(share - p) < 4 * deviation and set(total.unique().tolist()) == {0.0, torch.tensor(1 / (1 - p)).item()}
    assert torch.equal(total, run(SEED)) and not torch.equal(total, run(SEED + 1))
