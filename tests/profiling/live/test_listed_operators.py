"""The operators that a function runs on fake tensors."""

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.fx.trace.twin import Twins
from autofuse.profiling.live.listed_operators import list_operators


def operators(model, *shape, backward=True):
    mode = FakeTensorMode()
    twin = Twins(mode.from_tensor, watched=False).of(model)
    with mode:
        x = torch.empty(*shape, requires_grad=True)
        return list_operators(lambda: twin(x), twin, [x, *twin.parameters()], backward)


def names(found, phase):
    return [(o.name.removeprefix("aten::"), o.module) for o in found if o.phase == phase]


def test_operators_belong_to_the_module_that_is_called_and_backwards_to_their_forwards():
    found = operators(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), 2, 4)
    assert names(found, "forward") == [("addmm", "0"), ("tanh", "1")]
    assert names(found, "backward")[0] == ("tanh_backward", "1")
    assert {module for _, module in names(found, "backward")[1:]} == {"0"}


def test_without_a_backward_there_is_only_the_forward():
    found = operators(nn.Sequential(nn.Linear(4, 8)), 2, 4, backward=False)
    assert [o.phase for o in found] == ["forward"]


def test_costs_are_those_of_the_counting_pass():
    (product,) = operators(nn.Linear(4, 8), 2, 4, backward=False)
    assert product.cost.flops == 2 * 2 * 4 * 8
    assert product.cost.bytes == 4 * (2 * 4 + 4 * 8 + 8 + 2 * 8)


def test_views_cost_nothing_and_are_left_out():
    assert not operators(nn.Flatten(), 2, 3, 4)
