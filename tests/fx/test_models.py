"""Hand-written models: their fused and unfused sites, with example inputs or at the first call, and equal results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import autofuse
from autofuse.verify.modules import verify
from tests.fx.conftest import fused_rules
from tests.fx.models import elsewhere, language

Examples = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A model, its arguments for some batch and length, and the rules that apply."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int, int], Examples]
    fused: str = ""


def tokens(name: str) -> Callable[[int, int], Examples]:
    return lambda b, n: {name: torch.randint(1, language.WORDS, (b, n))}


def numbers(b: int, n: int) -> Examples:
    return {"x": torch.randn(b, n, 16)}


def graph(b: int, n: int) -> Examples:
    near = torch.rand(b, n, n) > 0.5
    return {"batch": {"x": torch.randn(b, n, 16), "adjacent": near | torch.eye(n).bool(), "distance": near.long()}}


CASES = {
    "heads in a list": Case(
        language.HeadsInAList,
        lambda b, n: {k: torch.randint(0, language.WORDS, (b, n)) for k in ("idx", "targets")},
        "AF101 AF304",
    ),
    "grouped": Case(language.Grouped, tokens("tokens"), "AF101 AF202 AF303 AF402"),
    "encoder and decoder": Case(
        language.EncoderDecoder, lambda b, n: tokens("source")(b, n) | tokens("target")(b, n + 2), "AF101 AF203"
    ),
    "weights on request, not asked for": Case(language.OnRequest, numbers, "AF101 AF203"),
    "weights on request": Case(language.OnRequest, lambda b, n: numbers(b, n) | {"need_weights": True}, "AF203"),
    "lambda and cache": Case(language.LambdaAndCache, numbers, "AF101 AF304"),
    "time series": Case(language.TimeSeries, numbers, "AF101 AF203"),
    "shared layer": Case(language.SharedLayer, numbers, "AF101 AF203"),
    "windows": Case(
        elsewhere.Windows, lambda b, n: {"x": torch.randn(2 * b, 4, 16), "mask": torch.randn(2, 4, 4)}, "AF101"
    ),
    "pixels": Case(elsewhere.Pixels, lambda b, n: {"x": torch.randn(b, 8, 3, n)}, "AF101 AF302"),
    "latents": Case(elsewhere.Latents, numbers, "AF101"),
    "graph": Case(elsewhere.Graph, graph, "AF101 AF203"),
    "cosine": Case(elsewhere.Cosine, numbers, "AF101"),
    "patches": Case(elsewhere.Patches, lambda b, n: {"image": torch.randn(b, 3, 8, 8)}, "AF101 AF304"),
    "linear": Case(elsewhere.Linear, numbers),
    "slots": Case(elsewhere.Slots, numbers),
    "talking": Case(elsewhere.Talking, numbers),
    "sinks": Case(elsewhere.Sinks, numbers),
}


@pytest.mark.parametrize("given", [True, False], ids=["given", "at the first call"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_hand_written_model_is_fused_where_allowed_and_equal_everywhere(case: Case, given: bool) -> None:
    model, plain = _build(case), _build(case)
    inputs = case.inputs(2, 6)
    autofuse.optimize(model, inputs if given else None)
    model(**inputs)
    assert set(case.fused.split()) <= fused_rules(model)
    assert "AF101" in case.fused or "AF101" not in fused_rules(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    for size in ((2, 6), (3, 9)):  # verify() derives the bounds from the original in double
        outcome = verify(plain, model, (), case.inputs(*size))
        assert outcome.ok, outcome.reason
    assert _number_of_softmaxes(model, inputs) <= (0 if "AF101" in case.fused else 3)


def _build(case: Case) -> nn.Module:
    """Not a copy: the lambdas of a copy run the children of the original."""
    torch.manual_seed(0)
    return case.make().eval()


def _number_of_softmaxes(model: nn.Module, inputs: Examples) -> int:
    """How often a softmax ran. This proves that a fused kernel ran."""
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        results = pytree.tree_leaves(model.eval()(**inputs))
    assert any(isinstance(r, Tensor) for r in results)
    return sum(e.count for e in seen.key_averages() if e.key == "aten::_softmax")
