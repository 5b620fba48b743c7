"""Rows of the distributed matrix (docs/distributed.md) in real processes: one launch for each number of ranks."""

from __future__ import annotations

import pytest
import torch

from tools.distributed.launch import run_rows
from tools.distributed.matrix import rows_of
from tools.distributed.result import Result

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")

TWO = (
    "FSDP1 per block, use_orig_params=False, after",
    "FSDP2 per block, bf16 MixedPrecisionPolicy, after",
    "tensor parallel, after",
    "ranks that would decide otherwise, before",
)
BY_NIGHT = (
    "DDP, static_graph, before",
    "FSDP2, DCP between plain and optimized, before",
    "DDP, no_sync over 3 micro batches, clipped, after",
    "FSDP2 per attention, MLP and norm, before",
    "FSDP1 per block, use_orig_params=True, before",
    "FSDP1, checkpoint_wrapper per block, after",
    "FSDP2 per block, midway",
    "FSDP2 per block, checkpoint_wrapper, after",
    "FSDP2, meta device, to_empty, load, before",
)
FOUR = ("FSDP2 x tensor parallel (2 x 2), after",)


@pytest.fixture(scope="module")
def two(request: pytest.FixtureRequest) -> dict[str, Result]:
    """The rows of one launch that this run takes."""
    night = any(item.get_closest_marker("night") and "two" in item.fixturenames for item in request.session.items)
    return _results(2, (*TWO, *BY_NIGHT) if night else TWO)


@pytest.mark.parametrize("name", [*TWO, *(pytest.param(name, marks=pytest.mark.night) for name in BY_NIGHT)])
def test_two_ranks_train_as_the_plain_model_does_and_run_the_fused_path(two: dict[str, Result], name: str) -> None:
    _holds(two[name])


@pytest.mark.night
@pytest.mark.parametrize("name", FOUR)
def test_four_ranks_on_a_mesh_of_two_dimensions_train_as_the_plain_model_does(name: str) -> None:
    _holds(_results(4, (name,))[name])


def test_every_name_here_is_a_row() -> None:
    for ranks, names in ((2, (*TWO, *BY_NIGHT)), (4, FOUR)):
        assert {f"{way.name}, {order}" for way, order in rows_of(ranks, names)} >= set(names)


def _results(ranks: int, names: tuple[str, ...]) -> dict[str, Result]:
    device = "cuda" if torch.cuda.device_count() >= ranks else "cpu"
    return {f"{r.name}, {r.order}": r for r in run_rows(ranks, names, device)}


def _holds(result: Result) -> None:
    assert result.verdict == "equal", result.reason
    assert result.difference is not None and result.allowed is not None and result.difference <= result.allowed
    assert result.seen["attention"] >= 2, "the profiler saw no fused attention"
    assert result.sites["AF101"] == 2, result.declined
