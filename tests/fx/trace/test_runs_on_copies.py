"""Runs on copies stop before an effect that cannot be undone, and restore everything else."""

import itertools
import logging

import pytest
import torch
from torch import nn

import autofuse
from autofuse.fx.session.trials import copy_module
from autofuse.fx.trace.runs_on_copies import without_effects
from autofuse.fx.trace.values import Untraceable

KEPT: list[int] = []


class Store:
    def __init__(self) -> None:
        self.rows: list[int] = []


class Layer(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.ids, self.store = what, itertools.count(), Store()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.what == "prints":
            print("layer")
        elif self.what == "prints and catches":
            try:
                print("layer")
            except Exception:
                return x
        elif self.what == "counts":
            next(self.ids)
        elif self.what == "keeps":
            KEPT.append(1)
            self.store.rows.append(1)
        return x * 2


class Model(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer, self.head = Layer(what), nn.Linear(4, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.sigmoid(x) * x + self.layer(x))
        return result


@pytest.mark.parametrize("what", ["prints", "prints and catches", "counts"])
def test_a_run_stops_before_the_effect(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    layer = Layer(what)
    with pytest.raises(Untraceable), without_effects():
        copy_module(layer, {})(torch.ones(2))
    assert capsys.readouterr().out == "" and next(layer.ids) == 0


def test_what_a_copy_shares_with_the_module_is_restored() -> None:
    layers = nn.Sequential(Layer("keeps"), Layer("keeps"))
    with without_effects():
        copy_module(layers, {})(torch.ones(2))
    assert [layer.store.rows for layer in layers] == [[], []] and KEPT == []


def test_nothing_is_logged_in_a_run(caplog: pytest.LogCaptureFixture) -> None:
    before = logging.root.manager.disable
    with without_effects():
        logging.getLogger("a user's").error("hidden")
    assert caplog.records == [] and logging.root.manager.disable == before


@pytest.mark.parametrize("examples", [True, False])
def test_the_search_for_a_head_has_no_effect(examples: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model, x = Model("prints"), torch.randn(2, 4)
    autofuse.optimize(model, x if examples else None, tune=False)
    model(x)
    assert capsys.readouterr().out == "layer\n"
