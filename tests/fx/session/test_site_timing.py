"""The decision to fuse a site from the times of the original and of the fused code."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.session import site_timing
from autofuse.fx.session.site_timing import FUSED, decide
from autofuse.kernels.policy import using
from autofuse.kernels.ranking import ORIGINAL, CandidateTime
from autofuse.results.comparison import Estimate, Interval
from autofuse.results.tuning import Trial

MIB = 2**20
STEADY = Estimate(1.0, Interval(0.99, 1.01))
UNSTEADY = Estimate(1.0, Interval(0.6, 1.7))
# Milliseconds and MiB of the fused operation and of the original, the noise of identical runs, and the decision.
CASES = {
    "faster": (10, 10, 20, 10, STEADY, "fused"),
    "faster beyond large noise": (10, 10, 20, 10, UNSTEADY, "fused"),
    "faster by less than large noise": (10, 10, 13, 10, UNSTEADY, "noisy"),
    "slower by less than large noise": (13, 10, 10, 10, UNSTEADY, "noisy"),
    "slower": (20, 10, 10, 10, STEADY, "original"),
    "slower beyond large noise": (20, 10, 10, 10, UNSTEADY, "original"),
    "as fast, with less memory": (10, 5, 10, 10, STEADY, "fused"),
    "as fast, with as much memory": (10, 10, 10, 10, STEADY, "original"),
    "as fast, with more memory": (10, 20, 10, 10, STEADY, "original"),
    "faster by one percent": (10, 10, 10.1, 10, STEADY, "original"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_site_is_fused_only_on_evidence(case: str) -> None:
    fused, of_fused, own, of_own, control, wanted = CASES[case]
    draws = random.Random(0)
    milliseconds, memory = {FUSED: fused, ORIGINAL: own}, {FUSED: of_fused, ORIGINAL: of_own}
    trials = [Trial(n, seconds=t / 1e3, peak_bytes=memory[n] * MIB, held_bytes=0) for n, t in milliseconds.items()]
    samples = {n: [t / 1e3 * draws.uniform(0.995, 1.005) for _ in range(30)] for n, t in milliseconds.items()}
    timing = decide(CandidateTime(trials, samples, control), "compiled", "")
    assert (timing.kept, timing.noisy) == {"fused": (False, False), "noisy": (True, True), "original": (True, False)}[
        wanted
    ]
    assert timing.kernel == ("compiled" if wanted == "fused" else "")
    if timing.kept:
        assert timing.reason.code.name == ("too-noisy" if wanted == "noisy" else "not-faster")
    if wanted == "noisy":
        assert timing.words.startswith("too noisy to decide: ") and timing.words.endswith("; the original stays")


def test_the_report_has_the_measured_numbers() -> None:
    trials = [
        Trial(FUSED, seconds=0.026, peak_bytes=MIB, held_bytes=0),
        Trial(ORIGINAL, seconds=0.0198, peak_bytes=MIB, held_bytes=0),
    ]
    samples = {t.name: [t.seconds or 0.0] * 10 for t in trials}
    noisy = CandidateTime(trials, samples, Estimate(1.0, Interval(0.1, 16.5)))
    assert decide(noisy, "", "").words == (
        "too noisy to decide: 26 ms, the original 19.8 ms, and identical runs differ by up to 16.5x; the original stays"
    )


def test_a_fused_site_that_is_not_faster_says_why_it_is_chosen() -> None:
    trials = [
        Trial(FUSED, seconds=0.0127, peak_bytes=MIB, held_bytes=0),
        Trial(ORIGINAL, seconds=0.0122, peak_bytes=3 * MIB, held_bytes=0),
    ]
    draws = random.Random(0)
    samples = {t.name: [(t.seconds or 0.0) * draws.uniform(0.9, 1.1) for _ in range(30)] for t in trials}
    timing = decide(CandidateTime(trials, samples, Estimate(1.0, Interval(0.9, 1.1))), "", "")
    assert not timing.kept
    assert timing.words == (
        "12.7 ms, the original 12.2 ms; of the candidates that are equally fast, it takes the least memory, at its "
        "peak and saved for the backward: 1.0 MiB, against 3.0 MiB for original"
    )


class Local(nn.Module):
    """Attention in which a query sees ten keys, or all that precede it, by the numbers of a buffer."""

    def __init__(self, window: int, cap: float = 0.0) -> None:
        super().__init__()
        ones = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)
        self.register_buffer("kept", ones.tril().triu(1 - window))
        self.cap = cap

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) * 0.25
        if self.cap:
            scores = self.cap * torch.tanh(scores / self.cap)
        return scores.masked_fill(~self.kept, float("-inf")).softmax(-1) @ v


LENGTH = 256


@pytest.mark.parametrize(("window", "cap", "wanted"), [
    (10, 0.0, {"window": (9, 0), "is_causal": False}), (LENGTH, 0.0, {"window": None, "is_causal": True}),
    pytest.param(10, 9.0, {"is_causal": False}, marks=pytest.mark.night),
])  # fmt: skip
def test_kernels_are_measured_for_the_call_that_they_get(
    window: int, cap: float, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The public function finds out that the mask is a window or causal."""
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(site_timing, "SHORTEST", {"cpu": 0.0})
    measured: list[dict[str, Any]] = []
    tune = site_timing.tune

    def note_and_tune(operation: Any, args: Any, kwargs: Any, **options: Any) -> Any:
        measured.append(kwargs)
        return tune(operation, args, kwargs, **options)

    monkeypatch.setattr(site_timing, "tune", note_and_tune)
    operands = tuple(torch.randn(1, 2, LENGTH, 16) for _ in range(3))
    with using(measured=True, providers=("torch",)):
        model = autofuse.optimize(Local(window, cap), operands)
        expected = Local(window, cap)(*operands)
    assert measured and all({name: kwargs.get(name) for name in wanted} == wanted for kwargs in measured)
    torch.testing.assert_close(model(*operands), expected)
