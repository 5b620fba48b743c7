"""The table of public models: a row is measured, a crash is reported in its row, and the page lists declined sites."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.models.__main__ import all_rows
from tools.models.measured import Measured, measure
from tools.models.row import Row
from tools.models.running import run_row
from tools.models.summary import as_json, as_markdown


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return F.softmax(q @ k.transpose(-2, -1) / 8**0.5, dim=-1) @ v


def row(make: Callable[[], nn.Module], expects: tuple[str, ...] = ("AF101",)) -> Row:
    return Row("Attention", "torch", make, lambda: torch.randn(2, 5, 8), expects)


def test_a_model_is_built_optimized_compared_trained_and_profiled() -> None:
    found = measure(row(Attention))
    assert list(found.broken()) == []
    assert found.fused == {"AF101": 1}
    assert found.calls == {"attention": 2}  # once in training, once in evaluation
    assert 0 < found.error <= found.bound
    assert 0 <= found.losses <= 1
    assert found.operators[1] < found.operators[0]


def test_an_expected_rule_that_fuses_nothing_is_a_broken_promise() -> None:
    found = measure(row(lambda: nn.Linear(8, 8)))
    assert list(found.broken()) == ["AF101 fused nothing"]


def raises() -> nn.Module:
    raise ValueError("no such size")


def ends() -> nn.Module:
    os._exit(3)


def sleeps() -> nn.Module:
    time.sleep(60)
    return nn.Identity()


@pytest.mark.parametrize(
    ("make", "says"),
    [(raises, "ValueError: no such size"), (ends, "its process ended with 3"), (sleeps, "took more than 1 s")],
)
def test_the_failure_of_a_process_is_reported_in_its_row(make: Callable[[], nn.Module], says: str) -> None:
    found = run_row(row(make), seconds=1 if make is sleeps else 60)
    assert found.failure.startswith(says)
    assert f"**{says}" in as_markdown([found], [])


def test_the_page_shows_what_was_fused_and_why_the_rest_was_declined() -> None:
    found = Measured("Attention", "torch", fused={"AF101": 2}, calls={"attention": 4}, operators=(20, 10))
    found.refused = {"AF203: a reason": 3}
    page = as_markdown([found], ["another_library"])
    assert "| Attention | torch | 0 | 0 | AF101 2 | 3 |" in page
    assert "AF203: a reason (3 times)" in page
    assert "another_library" in page
    assert '"fused": {' in as_json([found], [])


def test_there_are_many_rows_with_unique_names() -> None:
    pytest.importorskip("transformers")
    rows, absent = all_rows()
    assert len({r.name for r in rows}) == len(rows)
    assert sum(r.package == "transformers" for r in rows) >= 25
    assert "transformers" not in absent


@pytest.mark.night
@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("Encoder, masked", {"AF101": 2, "AF201": 5, "AF304": 2}),
        ("Decoder, T5 bias", {"AF101": 2, "AF201": 5, "AF304": 2}),
        ("Wav2Vec2Model", {"AF101": 2, "AF203": 5, "AF304": 2}),
    ],
)
def test_models_with_state_are_fused(name: str, fused: dict[str, int]) -> None:
    rows = {r.name: r for r in all_rows()[0]}
    if name not in rows:
        pytest.skip("its library is not installed")
    found = measure(rows[name])
    assert list(found.broken()) == []
    assert found.fused == fused
