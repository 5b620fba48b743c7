"""A stored timing is loaded for an equal site and for no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

from autofuse.fx.rewrite.excerpt import Excerpt
from autofuse.fx.session import remembered_times
from autofuse.fx.session.remembered_times import load, site_key, store
from autofuse.fx.session.site_timing import SiteTiming
from autofuse.kernels.policy import using

CPU = torch.device("cpu")


class Scaled(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x) * self.weight


def _of_the_user(x: Tensor) -> Tensor:
    return x


def _excerpt(given: Tensor, function: object = torch.sqrt) -> Excerpt:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_method("mul", (graph.call_function(function, (x,)), graph.get_attr("weight"))),))  # type: ignore[arg-type]
    return Excerpt("gelu", graph, graph, (given,), "torch")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path))
    with using(measured=True):
        yield


def test_with_measuring_off_nothing_is_loaded() -> None:
    place = site_key(_excerpt(torch.ones(2, 4)), Scaled(), True)
    store(place, CPU, SiteTiming())
    with using(measured=False):
        assert load(place, CPU, SiteTiming) is None


def test_the_next_process_loads_the_timing_of_an_equal_site() -> None:
    place = site_key(_excerpt(torch.ones(2, 4)), Scaled(), True)
    assert place
    assert place == site_key(_excerpt(torch.zeros(2, 4)), Scaled(), True)
    store(place, CPU, SiteTiming(True, "slower", "torch"))
    remembered_times.forget()
    assert load(place, CPU, SiteTiming) == SiteTiming(True, "slower", "torch")


@pytest.mark.parametrize(("given", "module", "training"), [
    (torch.ones(3, 4), Scaled(), True),
    (torch.ones(2, 4), Scaled(), False),
    (torch.ones(2, 4), Scaled(1), True),
    (torch.ones(2, 4), Scaled().double(), True),
    (torch.ones(2, 4, dtype=torch.bfloat16), Scaled(), True),
    (torch.ones(4, 2).t(), Scaled(), True),
    (torch.ones(2, 4, requires_grad=True), Scaled(), True),
], ids=["size", "mode", "parameter", "dtype of a parameter", "dtype", "strides", "gradient"])  # fmt: skip
def test_another_site_has_another_key(given: Tensor, module: nn.Module, training: bool) -> None:
    assert site_key(_excerpt(given), module, training) != site_key(_excerpt(torch.ones(2, 4)), Scaled(), True)


def test_other_settings_give_another_key() -> None:
    before = site_key(_excerpt(torch.ones(2, 4)), Scaled(), True)
    with using(policy="memory"):
        assert site_key(_excerpt(torch.ones(2, 4)), Scaled(), True) != before


def test_timings_of_user_code_are_not_stored() -> None:
    assert site_key(_excerpt(torch.ones(2, 4), _of_the_user), Scaled(), True) == ""
    assert site_key(_excerpt(torch.ones(2, 4), lambda x: x), Scaled(), True) == ""


@pytest.mark.parametrize("entry", [{}, {"kept": True}, {"kept": 1, "words": "", "kernel": "", "noisy": False}, [], "x"])
def test_an_entry_with_other_fields_is_ignored(entry: object) -> None:
    place = site_key(_excerpt(torch.ones(2, 4)), Scaled(), True)
    remembered_times._entries(remembered_times._cache(CPU))[place] = entry
    assert load(place, CPU, SiteTiming) is None
