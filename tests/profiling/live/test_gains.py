"""Predicted gains: the arithmetic, and the reading of models."""

import pytest
import torch
from torch import nn

from autofuse.demo import gpt
from autofuse.profiling.live.gains import LEAST, Predictor, amdahl, with_places
from autofuse.profiling.live.operator_costs import Costs
from autofuse.profiling.live.rule_places import read_places
from autofuse.results.profile import Layer, Work


class Paper:
    """A machine on which only launches take time: a second for each operator."""

    launch, special = 1.0, float("inf")

    def flops(self, dtype):
        return float("inf")

    def bandwidth(self, touched):
        return float("inf")


class Nothing:
    def seconds(self, operator):
        return 0.0


class Tower(nn.Module):
    """Tanh GELU by hand between two products."""

    def __init__(self):
        super().__init__()
        self.act = gpt.NewGELU()
        self.down = nn.Linear(8, 8)

    def forward(self, x):
        return self.down(torch.relu(self.act(x)))


def costs():
    return Costs(Paper(), Nothing())


def layers(**own):
    return [Layer(name, "", 1, Work(), Work(), Work(f), Work(b)) for name, (f, b) in own.items()]


def only(found):
    (place,) = [place for layer in found for place in layer.places]
    return place


def test_a_place_takes_its_share_of_the_layer_and_the_fused_operation_runs_at_the_steps_pace():
    model = Tower().eval()
    reading = read_places(model, torch.ones(4, 8))
    forward_only = layers(act=(16.0, 0.0), down=(1.0, 0.0))
    place = only(with_places(forward_only, reading, costs(), 20.0))
    # Eight operators by hand, all of the layer's, at two seconds each where the model says one; GELU is one operator.
    assert place.seconds == 16
    assert place.predicted_seconds == pytest.approx(2.0)
    assert place.predicted_gain == pytest.approx(20 / (20 - 14))
    assert place.layers == ("act",)


def test_the_bytes_that_are_saved_are_those_of_the_intermediate_results():
    reading = read_places(Tower().eval(), torch.ones(4, 8))
    paper = Predictor(reading, costs(), False).modelled(reading.sites[0])
    # x * 0.5, x ** 3, * c, x + ., * c, tanh, + 1, . * .: six read one tensor and write one, two read two.
    one = 4 * 4 * 8
    assert (paper.original.bytes, paper.fused.bytes) == ((6 * 2 + 2 * 3) * one, 2 * one)


def test_a_step_that_trains_counts_the_backward_too():
    reading = read_places(Tower(), torch.ones(4, 8, requires_grad=True))
    forward, both = (Predictor(reading, costs(), training).modelled(reading.sites[0]) for training in (False, True))
    assert {phase for _, phase in forward.before} == {"forward"}
    assert {phase for _, phase in both.before} == {"forward", "backward"}
    assert both.original.operators > forward.original.operators == 8


def test_remaining_operators_keep_their_measured_time():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, x, y):
            return self.norm(x + y)

    model = Block().eval()
    found = with_places(
        [Layer("", "", 1, Work(), Work(), Work(3.0), Work()), Layer("norm", "", 1, Work(), Work(), Work(7.0), Work())],
        read_places(model, (torch.ones(2, 8), torch.ones(2, 8))), costs(), 10.0,
    )  # fmt: skip
    for place in [p for layer in found for p in layer.places if p.seconds is not None]:
        assert place.predicted_seconds == pytest.approx(place.seconds)
        assert place.reason.startswith("nothing to gain") or place.part_of


def test_amdahl_bounds_the_gain_by_what_the_place_takes():
    assert amdahl(10.0, 5.0) == 2
    assert amdahl(10.0, -10.0) == 0.5
    assert amdahl(10.0, 10.0) is None
    assert 0 < LEAST < 1


def test_a_place_in_a_layer_that_took_no_time_has_no_prediction():
    place = only(with_places(layers(act=(0.0, 0.0)), read_places(Tower().eval(), torch.ones(4, 8)), costs(), 1.0))
    assert place.seconds is None and place.predicted_seconds is None
