"""The double-the-batch probe: which inputs are doubled, and which verdict follows from a ratio."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from autofuse.profiling.live.probe import NotApplicable, double_batch, probe_batch, verdict_of
from autofuse.results.comparison import Estimate, Interval
from autofuse.results.profile import Roof, Work

CPU = torch.device("cpu")


class Pair(NamedTuple):
    ids: torch.Tensor
    mask: torch.Tensor


def test_every_tensor_that_begins_with_the_batch_is_repeated() -> None:
    inputs = {"ids": torch.arange(6).view(3, 2), "more": [torch.ones(3), 7, None], "pair": Pair(*torch.ones(2, 3, 4))}

    made: Any = double_batch(inputs)

    assert made["ids"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3], [4, 5]]
    assert made["more"][0].shape == (6,)
    assert made["more"][1:] == [7, None]
    assert isinstance(made["pair"], Pair)
    assert made["pair"].mask.shape == (6, 4)


def test_broadcast_tensors_and_scalars_stay() -> None:
    x, mask, scale = torch.ones(4, 8), torch.ones(1, 1, 8, 8), torch.tensor(2.0)

    made = double_batch((x, mask, scale))

    assert [tuple(t.shape) for t in made] == [(8, 8), (1, 1, 8, 8), ()]
    assert double_batch(torch.ones(1, 5)).shape == (2, 5)


def test_inputs_that_ask_for_a_gradient_still_do() -> None:
    made = double_batch(torch.ones(2, 3, requires_grad=True))

    assert made.requires_grad
    assert made.is_leaf


@pytest.mark.parametrize("inputs", [(torch.ones(4, 8), torch.ones(8, 8)), (torch.tensor(1.0),), {}])
def test_inputs_whose_batch_is_not_known_are_refused(inputs: Any) -> None:
    with pytest.raises(NotApplicable):
        double_batch(inputs)
    assert probe_batch(lambda _: None, inputs, CPU).ratio is None


def test_a_step_that_does_not_run_with_twice_the_batch_is_the_reason() -> None:
    def run(x: Any) -> None:
        if len(x) > 2:
            raise RuntimeError("only two\nand more words")

    found = probe_batch(run, torch.ones(2, 3), CPU)

    assert found.ratio is None
    assert "RuntimeError: only two" in found.reason


def test_a_probe_of_a_real_step_has_a_ratio_within_its_interval() -> None:
    model = nn.Linear(64, 64)

    found = probe_batch(lambda x: model(x).sum().backward(), torch.ones(8, 64), CPU, seconds=0.1)

    assert found.ratio is not None
    assert found.interval is not None
    assert found.interval.low <= found.ratio <= found.interval.high
    assert found.verdict in ("overhead", "inconclusive", "unknown")


@pytest.mark.parametrize(
    ("low", "ratio", "high", "verdict"),
    [(1.15, 1.2, 1.25, "overhead"), (1.4, 1.45, 1.55, "inconclusive"), (1.8, 1.9, 2.1, "compute")],
)
def test_below_one_and_a_half_overhead_limits_the_step(low: float, ratio: float, high: float, verdict: str) -> None:
    found = verdict_of(Estimate(ratio, Interval(low, high)), Work(1.0, 1000, 10, 1), Roof(100.0, 10.0))

    assert found[0] == verdict
    assert f"{ratio:.2f}" in found[1]


def test_without_roofs_the_probe_only_says_that_overhead_does_not_limit() -> None:
    assert verdict_of(Estimate(1.9, Interval(1.8, 2.0)))[0] == "unknown"
